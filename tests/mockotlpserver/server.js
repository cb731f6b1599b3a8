// Elastic's receiver of OTLP over HTTP and gRPC: what it gets goes to stdout, one JSON object a line.
// Arguments: the ports, 0 for any. A line on stdin, {busy}, {rejects} or {}, says how it answers from then on.
'use strict';
const http = require('http');
const readline = require('readline');
const grpc = require('@grpc/grpc-js');
const {MockOtlpServer} = require('@elastic/mockotlpserver');

// busy: a google.rpc.Status in hexadecimal, with the seconds to wait. rejects: so many items of each request.
let fault = {};

// The receiver answers before it passes a request on. Here an answer waits until the request is printed, so
// that a client was told nothing that is lost when this process is killed.
const emit = http.Server.prototype.emit;
http.Server.prototype.emit = function (event, request, response) {
    if (event === 'request' && fault.busy) {
        request.on('end', () => response.writeHead(503, {'retry-after': fault.busy.seconds}).end()).resume();
        return true;
    }
    if (event === 'request') {
        const end = response.end;
        const body = fault.rejects && Buffer.from([10, 2, 8, fault.rejects]); // an Export…ServiceResponse
        response.end = (...answer) => setImmediate(() => end.apply(response, body ? [body] : answer));
    }
    return emit.apply(this, arguments);
};

const addService = grpc.Server.prototype.addService;
grpc.Server.prototype.addService = function (service, {Export}) {
    const answered = (call, callback) => {
        if (fault.busy) {
            const metadata = new grpc.Metadata();
            metadata.set('grpc-status-details-bin', Buffer.from(fault.busy.status, 'hex'));
            callback({code: grpc.status.UNAVAILABLE, details: 'busy', metadata});
            return;
        }
        const {rejects} = fault;
        const partialSuccess = rejects && {rejectedSpans: rejects, rejectedLogRecords: rejects};
        Export(call, (error) => setImmediate(callback, error, {partialSuccess}));
    };
    addService.call(this, service, {Export: answered});
};

// Both protocols in one form: 64-bit integers as text, bytes in hexadecimal.
function plain(value) {
    if (value === null || typeof value !== 'object') return value;
    if (value instanceof Uint8Array) return Buffer.from(value).toString('hex');
    if (Array.isArray(value)) return value.map(plain);
    if ('low' in value && 'high' in value && 'unsigned' in value) return value.toString();
    return Object.fromEntries(Object.keys(value).map((key) => [key, plain(value[key])]));
}

const tell = (signal) => (request) =>
    process.stdout.write(JSON.stringify({signal, request: plain(request)}) + '\n');

async function main() {
    const [httpPort, grpcPort] = process.argv.slice(2).map(Number);
    const server = new MockOtlpServer({
        logLevel: 'error',
        services: ['http', 'grpc'],
        httpHostname: '127.0.0.1',
        httpPort,
        grpcHostname: '127.0.0.1',
        grpcPort,
        onTrace: tell('traces'),
        onLogs: tell('logs'),
        onMetrics: tell('metrics'),
    });
    await server.start();
    console.log(JSON.stringify({http: server.httpUrl.toString(), grpc: server.grpcUrl.toString()}));
    readline
        .createInterface({input: process.stdin})
        .on('line', (line) => (fault = JSON.parse(line)))
        .on('close', () => process.exit());
}

main();

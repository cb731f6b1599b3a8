// Elastic's receiver of OTLP over HTTP and gRPC: what it gets goes to stdout, one JSON object a line.
'use strict';
const {MockOtlpServer} = require('@elastic/mockotlpserver');

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
    const server = new MockOtlpServer({
        logLevel: 'error',
        services: ['http', 'grpc'],
        httpHostname: '127.0.0.1',
        httpPort: 0,
        grpcHostname: '127.0.0.1',
        grpcPort: 0,
        onTrace: tell('traces'),
        onLogs: tell('logs'),
        onMetrics: tell('metrics'),
    });
    await server.start();
    console.log(JSON.stringify({http: server.httpUrl.toString(), grpc: server.grpcUrl.toString()}));
    process.stdin.on('end', () => process.exit()).resume();
}

main();

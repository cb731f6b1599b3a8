# The agent as an image. Build: docker build --tag kprobe-exporter .
#
# BUILDER needs gcc, pip and the headers of the same Python (3.11 or newer) that BASE has; BASE needs
# Python and nothing else, not even a shell: a distroless Python 3.11 is enough. The bases are named by tags, since
# these get security fixes without a change here; pin what you deploy: --build-arg BASE=NAME@sha256:DIGEST.
ARG BUILDER=docker.io/library/python:3.11-bookworm
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BUILDER} AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY deploy/requirements deploy/requirements
# Exact versions with their hashes (scripts/lock), and no code of a source package is run. Bytecode that is never compared with its source makes the
# start quicker, and stays valid when a builder changes the files' times.
RUN python3 -m pip install --no-cache-dir --root-user-action ignore --require-hashes --only-binary :all: \
        --target /build --requirement deploy/requirements/build.txt \
    && python3 -m pip install --no-cache-dir --root-user-action ignore --require-hashes --only-binary :all: \
        --no-compile --target /image/opt/kprobe_exporter --requirement deploy/requirements/runtime.txt
COPY kprobe_exporter kprobe_exporter
RUN PYTHONPATH=/build python3 -m pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation \
        --wheel-dir /wheels . \
    && python3 -m pip install --no-cache-dir --root-user-action ignore --no-index --no-deps --no-compile \
        --target /image/opt/kprobe_exporter /wheels/*.whl \
    && rm -r /image/opt/kprobe_exporter/bin \
    && cp deploy/requirements/sbom.cdx.json /image/opt/kprobe_exporter/ \
    && PYTHONPATH=/image/opt/kprobe_exporter python3 -BP -c 'import kprobe_exporter.source._lines, kprobe_exporter.source._pages' \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /image/opt/kprobe_exporter \
    && mkdir -p /image/tracefs /image/etc/kprobe_exporter \
    && ln -s /opt/kprobe_exporter/kprobe_exporter/config/default.yaml /image/etc/kprobe_exporter/

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kprobe_exporter" \
    org.opencontainers.image.description="Linux kprobes, through tracefs, as Prometheus metrics" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image /
# PYTHONSAFEPATH: nothing is imported from the working directory.
ENV PYTHONPATH=/opt/kprobe_exporter PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# tracefs belongs to uid 0. No capability is needed: run it with --cap-drop ALL --read-only, and mount the host's
# /sys/kernel/tracing at /tracefs, where the agent finds it.
# hadolint ignore=DL3002
USER 0
EXPOSE 10435
STOPSIGNAL SIGTERM
# It imports nothing of the agent and takes 30 ms. With TLS or another port use --health-cmd or --no-healthcheck.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python3", "-ISc", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 10435, timeout=4); c.request('GET', '/-/healthy'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["python3", "-m", "kprobe_exporter"]
CMD ["run"]

# The agent's image: CPython, the locked dependencies, the driver's package. No compiler, no pip, no embedded cluster.
#   docker build -t gpu-dra:0.1.0 .
# To pin the base by content: --build-arg PYTHON_IMAGE=python@sha256:…
ARG PYTHON_IMAGE=python:3.13.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python -m venv --without-pip /opt/gpu-dra
COPY hack/agent.lock hack/
RUN pip --python /opt/gpu-dra/bin/python install --no-cache-dir --disable-pip-version-check \
      --only-binary :all: --require-hashes --requirement hack/agent.lock
COPY driver driver
RUN cp -r driver /opt/gpu-dra/lib/python3.*/site-packages/ \
 && printf '%s\n' '#!/opt/gpu-dra/bin/python' 'from driver.__main__ import main' 'raise SystemExit(main())' \
      >/opt/gpu-dra/bin/gpu-dra \
 && chmod 0755 /opt/gpu-dra/bin/gpu-dra \
 && find /opt/gpu-dra/lib -depth -type d \( -name tests -o -name __pycache__ \) -exec rm -r '{}' + \
 && chmod -R a+rX /opt/gpu-dra/lib/python3.*/site-packages/driver \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/gpu-dra/lib \
 && /opt/gpu-dra/bin/gpu-dra --version

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="gpu-dra" \
      org.opencontainers.image.description="Kubernetes DRA driver and device plugin for GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
# Nothing is installed in a running container.
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3.*/ensurepip /usr/local/lib/python3.*/idlelib \
      /usr/local/lib/python3.*/site-packages/pip*
COPY --from=build /opt/gpu-dra /opt/gpu-dra
COPY LICENSE /licenses/LICENSE
ENV PATH=/opt/gpu-dra/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# The DaemonSet runs it as root without capabilities, since the kubelet's directories are root's; the tools need no root.
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["gpu-dra"]
CMD ["run"]

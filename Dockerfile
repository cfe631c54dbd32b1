# Two images: `docker build --target worker .` runs one worker, `docker build --target platform .` the control room.
# docs/install.md says how to use them. The base images' versions are arguments; pin a digest for production.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE workspace.yaml jars.lock requirements.lock ./
COPY holdfast holdfast
COPY infra infra
COPY processors processors
COPY assets assets
COPY orchestration orchestration
COPY docs docs
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && sed -n 's/^\([A-Za-z0-9._-]*==[^ ]*\).*/\1/p' requirements.lock > /wheels/constraints.txt

FROM python:${PYTHON}-slim AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PATH=/opt/holdfast/bin:$PATH \
    HOLDFAST_HOME=/var/lib/holdfast HOLDFAST_CACHE=/var/cache/holdfast HOLDFAST_LOG_FORMAT=json
# Modules of processors are imported from here: mount it, or copy them into an image of your own.
ENV PYTHONPATH=/processors
RUN useradd --system --uid 10001 --home-dir /var/lib/holdfast holdfast \
    && install -d -o holdfast -g holdfast /var/lib/holdfast /var/cache/holdfast /processors \
    && python -m venv /opt/holdfast
VOLUME /var/lib/holdfast
WORKDIR /var/lib/holdfast

FROM base AS worker
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --find-links /wheels --constraint /wheels/constraints.txt "holdfast[columns,s3]"
USER 10001
ENV HOLDFAST_SERVING__PORT=9464
EXPOSE 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9464/health', timeout=4)"]
STOPSIGNAL SIGTERM
# The first argument is the processor's name: `docker run IMAGE --processor fleet`.
ENTRYPOINT ["python", "-m", "holdfast.processors"]
CMD ["--help"]

FROM base AS platform
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --find-links /wheels --constraint /wheels/constraints.txt "holdfast[all]"
USER 10001
# The jars belong to the image: a start needs no registry.
RUN ["python", "-m", "holdfast.infra.machine", "--all-jars"]
EXPOSE 3000
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python", "-m", "holdfast.orchestration.foreground", "--check", "--port", "3000"]
STOPSIGNAL SIGTERM
CMD ["python", "-m", "holdfast.orchestration.foreground", "--port", "3000"]

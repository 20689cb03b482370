# Every part of Tokenmill is one command of this image; docker-compose.yml shows them together.

FROM python:3.11-slim AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# The lock is cut at its headings: the image needs no development tools, the build tools leave again below.
COPY requirements.lock ./
RUN sed '/^# build$/,$d' requirements.lock > runtime.lock \
 && sed '/^# build$/,/^# development$/!d' requirements.lock > build.lock \
 && python -m venv /opt/tokenmill \
 && /opt/tokenmill/bin/pip install --require-hashes -r runtime.lock -r build.lock

COPY pyproject.toml README.md LICENSE ./
COPY budget budget
COPY producer producer
COPY results results
COPY tokenmill tokenmill
COPY workers workers
RUN /opt/tokenmill/bin/python -m hatchling build -t wheel -d /tmp/wheel \
 && /opt/tokenmill/bin/pip install --no-deps /tmp/wheel/*.whl \
 && /opt/tokenmill/bin/pip uninstall -y -r build.lock \
 && /opt/tokenmill/bin/pip check \
 && /opt/tokenmill/bin/pip uninstall -y pip setuptools

FROM python:3.11-slim
RUN useradd --system --uid 10001 --create-home --shell /usr/sbin/nologin tokenmill \
 && install -d -o 10001 -g tokenmill /job /out /cache
COPY --from=build /opt/tokenmill /opt/tokenmill
ENV PATH=/opt/tokenmill/bin:$PATH HF_HOME=/cache/huggingface PYTHONUNBUFFERED=1
USER 10001
WORKDIR /job

# Collector, producer and workers are of use while they reach Redis; the simulator has a check of its own in docker-compose.yml.
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import os; from budget.connections import connect; url = os.environ.get('TOKENMILL_REDIS_URL'); url and connect(url).ping()"]

# A worker, collector or producer that gets SIGTERM settles what it holds and leaves.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tokenmill"]
CMD ["--help"]

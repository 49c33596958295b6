# The service, for processors without a GPU. Weights are mounted at /models or come with the package (the default model).
#   openssl rand -hex 32 > token && chmod 644 token
#   docker build -t lmr .
#   docker run -p 127.0.0.1:8080:8080 -v lmr-state:/state -v "$PWD/token:/run/secrets/token:ro" lmr --labels cat,dog,ship
# The digest, not the tag, decides which image this is; Dependabot renews both.
FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS build
WORKDIR /src
COPY .ci/release.txt .ci/release.txt
COPY deploy/requirements.txt deploy/requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
# Every file that is downloaded has a known hash. torch's own index has the build without CUDA, a tenth of the size of
# the one on PyPI.
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement .ci/release.txt \
    && /opt/build/bin/python -m build --no-isolation --wheel --outdir /wheels \
    && python -m venv /opt/lmr \
    && /opt/lmr/bin/pip install --no-cache-dir --require-hashes --only-binary :all: \
        --requirement deploy/requirements.txt --extra-index-url https://download.pytorch.org/whl/cpu \
    && /opt/lmr/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
COPY --from=build /opt/lmr /opt/lmr
RUN useradd --uid 10001 --create-home lmr \
    && mkdir /state /models \
    && chown lmr /state /models
ENV PATH=/opt/lmr/bin:$PATH PYTHONUNBUFFERED=1 HF_HOME=/models/hub LMR_CACHE=/models/cache
USER 10001
WORKDIR /home/lmr
VOLUME ["/state", "/models"]
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
# A token is required, as the service listens beyond loopback inside of the container.
ENTRYPOINT ["lmr", "serve", "--host", "0.0.0.0", "--port", "8080", "--store", "sqlite:/state/streams.sqlite", "--token-file", "/run/secrets/token"]
CMD ["--labels", "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"]

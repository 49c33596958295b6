# The service, for processors without a GPU. Weights are mounted at /models or come with the package (the default model).
#   docker build -t lmr .
#   docker run -p 127.0.0.1:8080:8080 -v lmr-state:/state -v "$PWD/token:/run/secrets/token:ro" lmr --labels cat,dog,ship
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
# torch's own index has the build without CUDA, which is a tenth of the size of the one on PyPI.
RUN python -m venv /opt/lmr \
    && /opt/lmr/bin/pip install --no-cache-dir --constraint constraints.txt torch \
        --index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple \
    && /opt/lmr/bin/pip install --no-cache-dir --constraint constraints.txt '.[serve,postgres]'

FROM python:3.11-slim
COPY --from=build /opt/lmr /opt/lmr
RUN useradd --uid 10001 --create-home lmr \
    && mkdir /state /models \
    && chown lmr /state /models
ENV PATH=/opt/lmr/bin:$PATH PYTHONUNBUFFERED=1 HF_HOME=/models/hub
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

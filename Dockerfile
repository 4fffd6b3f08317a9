# A server of models.  CPU:  docker build -t vitrail .
#                      CUDA: docker build -t vitrail:cuda --build-arg TORCH=cu128 .
#
#   docker run -p 127.0.0.1:8000:8000 -v "$PWD/key:/key:ro" vitrail
#
# The container listens on all of its addresses, so it needs a key: `openssl rand -hex 32 > key`.
FROM python:3.12-slim

ARG TORCH=cpu
WORKDIR /app
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/${TORCH} torch
COPY pyproject.toml README.md LICENSE ./
COPY vitrail vitrail
RUN pip install --no-cache-dir '.[serve,fast,onnx]' && useradd --create-home serve
USER serve
WORKDIR /home/serve
EXPOSE 8000
# Python gets SIGTERM itself, and answers what is under way before it ends.
ENTRYPOINT ["vitrail", "serve", "--host", "0.0.0.0", "--key-file", "/key"]
CMD ["ti8-64"]

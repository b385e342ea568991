# docker build --file docker/cpu.Dockerfile --tag efficient-attention .
# docker run --rm --user "$(id -u)" --volume "$PWD:/work" efficient-attention \
#   train --config quickstart.py --workdir runs/quickstart
FROM python:3.12-slim-bookworm

WORKDIR /build
COPY requirements/run.txt requirements/run.txt
RUN pip install --no-cache-dir --require-hashes --requirement requirements/run.txt \
  --constraint requirements/run.txt

COPY pyproject.toml setup.py README.md LICENSE ./
COPY configs configs
COPY efficient_attention efficient_attention
RUN pip install --no-cache-dir --no-deps .

# A user of the host may have no home folder here; caches of libraries go to /tmp.
ENV HOME=/tmp
WORKDIR /work
USER 65534:65534
ENTRYPOINT ["efficient-attention"]

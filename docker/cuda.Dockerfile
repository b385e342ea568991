# For NVIDIA GPUs. JAX's packages bring CUDA; the host needs the driver and the NVIDIA Container Toolkit.
# docker build --file docker/cuda.Dockerfile --tag efficient-attention:cuda .
# docker run --rm --gpus all --user "$(id -u)" --volume "$PWD:/work" efficient-attention:cuda \
#   train --config quickstart.py --workdir runs/quickstart
FROM python:3.12-slim-bookworm

WORKDIR /build
COPY requirements/run.txt requirements/plan.txt requirements/
RUN pip install --no-cache-dir --require-hashes --requirement requirements/run.txt \
  --constraint requirements/run.txt
# requirements/plan.txt locks the packages of `jax[cuda13]` too; only these are selected from it.
RUN awk '/^[a-z]/ { keep = /^(jax-cuda13|nvidia)-/ } keep' requirements/plan.txt > requirements/cuda.txt \
  && pip install --no-cache-dir --no-deps --require-hashes --requirement requirements/cuda.txt

COPY pyproject.toml setup.py README.md LICENSE ./
COPY configs configs
COPY efficient_attention efficient_attention
RUN pip install --no-cache-dir --no-deps .

# A user of the host may have no home folder here; caches of libraries go to /tmp.
ENV HOME=/tmp
WORKDIR /work
USER 65534:65534
ENTRYPOINT ["efficient-attention"]

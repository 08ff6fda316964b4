# syntax=docker/dockerfile:1
# docker build -t ringfeed .                                  CPU
# docker build -t ringfeed:gpu --target gpu .                 GPU, with NCCL; run it with --gpus all
# docker run --rm -v "$PWD:/data" ringfeed shard-dataset build flights.csv shards --label late

ARG PYTHON=3.12
ARG CUDA=12.5.1

FROM python:${PYTHON}-slim-bookworm AS build-cpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake g++ libfarmhash-dev libhighwayhash-dev make \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/ringfeed
ENV PATH=/opt/ringfeed/bin:$PATH RINGFEED_CACHE=/tmp/horovod
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir ".[cpu,fast,hdfs,hdf5,prometheus]" && ringfeed install-horovod && rm -rf /tmp/horovod

FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS build-gpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        cmake g++ libfarmhash-dev libhighwayhash-dev make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/ringfeed
ENV PATH=/opt/ringfeed/bin:$PATH RINGFEED_CACHE=/tmp/horovod
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir ".[gpu,fast,hdfs,hdf5,prometheus]" \
    && ringfeed install-horovod --nccl yes \
    && rm -rf /tmp/horovod

FROM nvidia/cuda:${CUDA}-base-ubuntu24.04 AS gpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends openssh-client python3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-gpu /opt/ringfeed /opt/ringfeed
ENV PATH=/opt/ringfeed/bin:$PATH
RUN useradd --create-home --uid 10001 ringfeed
USER ringfeed
WORKDIR /data
CMD ["ringfeed", "doctor"]

# The last stage is what `docker build` makes by default.
FROM python:${PYTHON}-slim-bookworm AS cpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 openssh-client \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-cpu /opt/ringfeed /opt/ringfeed
ENV PATH=/opt/ringfeed/bin:$PATH
RUN useradd --create-home --uid 10001 ringfeed
USER ringfeed
WORKDIR /data
CMD ["ringfeed", "doctor"]

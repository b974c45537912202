# Training on the embedded Warp engine, for any machine. Build and run it with make docker-build IMAGE=cpu, make docker-train IMAGE=cpu
FROM python:3.11-slim-bookworm AS build

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# PyTorch's own index has a build without CUDA, a tenth of the size.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --index-url "$TORCH_INDEX" torch==2.13.0
WORKDIR /navrl
COPY pyproject.toml README.md LICENSE ./
COPY third_party third_party
COPY isaac-training isaac-training
RUN pip install --editable .

FROM python:3.11-slim-bookworm
# torch's OpenMP, which the engine shares out drones with
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /venv /venv
COPY --from=build /navrl /navrl
WORKDIR /navrl
COPY cfg cfg
COPY scripts scripts
COPY policies policies
ARG UID=1000
ARG GID=1000
RUN (getent group "$GID" || groupadd --gid "$GID" pilot) \
    && (getent passwd "$UID" || useradd --uid "$UID" --gid "$GID" --create-home pilot) \
    && mkdir -p runs /home/pilot/.cache \
    && chown -R "$UID:$GID" runs /home/pilot
USER ${UID}:${GID}
ENV PATH=/venv/bin:$PATH \
    HOME=/home/pilot
VOLUME ["/navrl/runs", "/home/pilot/.cache"]
ENTRYPOINT ["python", "scripts/train.py", "headless=True"]
CMD ["env.num_envs=1024"]

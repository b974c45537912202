# Training on Isaac Sim, for a machine with an RTX GPU. Build and run it with make docker-build, make docker-train; docs/gpu-box.md
ARG ISAAC_SIM_IMAGE=nvcr.io/nvidia/isaac-sim:6.2.0
FROM ${ISAAC_SIM_IMAGE}

# The image brings Isaac Sim 6.2 and its Python 3.12; Isaac Lab 3.0.0 is the release that pins this Isaac Sim.
USER 0
# Isaac Sim's launcher stays in front of Python and loses signals and exit codes; one that steps aside (exec) does not.
# hadolint ignore=SC2016
RUN sed 's/^\$python_exe .*/exec $python_exe "$@" $args/' /isaac-sim/python.sh > /isaac-sim/python-exec.sh \
    && grep --quiet '^exec ' /isaac-sim/python-exec.sh \
    && chmod 755 /isaac-sim/python-exec.sh
ENV PYTHON=/isaac-sim/python-exec.sh \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

COPY third_party/isaac-constraints.txt /tmp/constraints.txt
RUN "$PYTHON" -m pip install --constraint /tmp/constraints.txt "isaaclab[ovphysx]==3.0.0" \
    && rm /tmp/constraints.txt

WORKDIR /navrl
COPY pyproject.toml README.md LICENSE ./
COPY third_party third_party
COPY isaac-training isaac-training
RUN "$PYTHON" -m pip install --constraint third_party/isaac-constraints.txt --editable .
COPY cfg cfg
COPY scripts scripts
COPY policies policies

# Nobody trains as root: files in the mounted run directory belong to the person who started it.
ARG UID=1000
ARG GID=1000
RUN (getent group "$GID" || groupadd --gid "$GID" pilot) \
    && (getent passwd "$UID" || useradd --uid "$UID" --gid "$GID" --create-home pilot) \
    && mkdir -p /home/pilot/.cache /home/pilot/.nv /home/pilot/.nvidia-omniverse /home/pilot/.local/share/ov runs \
        /isaac-sim/kit/cache /isaac-sim/kit/logs /isaac-sim/kit/data \
    && chown -R "$UID:$GID" /home/pilot runs /isaac-sim/kit/cache /isaac-sim/kit/logs /isaac-sim/kit/data
USER ${UID}:${GID}
ENV HOME=/home/pilot

# Kernels and shaders compiled at the first start are kept between containers.
VOLUME ["/navrl/runs", "/home/pilot/.cache", "/home/pilot/.nv", "/isaac-sim/kit/cache"]

# The licence and the wandb key are given when it is run: ACCEPT_EULA=Y, WANDB_API_KEY=...
ENTRYPOINT ["/isaac-sim/python-exec.sh", "scripts/train.py", "sim=isaac", "headless=True"]
CMD ["env.num_envs=1024"]

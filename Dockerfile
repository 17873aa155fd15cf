# docker build -t mech_interp . && docker run -p 127.0.0.1:8000:8000 mech_interp
# Stricter: docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges -p 127.0.0.1:8000:8000 mech_interp
FROM python:3.11-slim

# where torch comes from: the CPU build; empty for the registry's own
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

RUN apt-get update && apt-get install -y --no-install-recommends libseccomp2 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY mikit mikit
RUN pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--index-url $TORCH_INDEX --extra-index-url https://pypi.org/simple} torch \
    && pip install --no-cache-dir -c constraints.txt '.[arena]'
COPY openenv.yaml ./
COPY server server
COPY tasks tasks
RUN useradd --system --uid 10001 --no-create-home mikit
USER mikit
ENV PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 MPLCONFIGDIR=/tmp HF_HUB_OFFLINE=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=3s --start-period=60s \
    CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"
# all interfaces of the container: the port is published where `docker run -p` says
CMD ["uvicorn", "server.app:app", "--host", "0.0.0.0", "--port", "8000"]

# The pinned SGLang image plus the kit's load client. Made by `invoke build`, which sends only the files named here.
# The tag and digest below are one manifest list for amd64 and arm64. The digest is second-hand and has not been
# verified by the authors of this kit: `invoke build` fails when the image's sglang.__version__ is not SGLANG.
ARG BASE=lmsysorg/sglang:v0.5.17@sha256:16aba8925507e631e1dc1e23d95d026533602591775f6a8db68b74ee99746155
ARG SGLANG=0.5.17

# The client's dependencies, apart from those of SGLang, whose environment stays as its authors left it. A folder
# `ca/` with certificates is used here only: the final stage takes the installed packages and nothing else.
FROM ${BASE} AS client
COPY ca/ /ca/
COPY requirements-client.lock /
RUN if ls /ca/*.crt >/dev/null 2>&1; then \
      python3 -c "import pip._vendor.certifi as c; print(open(c.where()).read())" | cat - /ca/*.crt >/ca/all.pem; export PIP_CERT=/ca/all.pem; \
    fi \
 && python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes \
      --only-binary :all: --no-compile --target /opt/kit/lib -r /requirements-client.lock

FROM ${BASE}
ARG BASE
ARG SGLANG
ARG KIT_VERSION
ARG KIT_CONTEXT
COPY --from=client /opt/kit/lib /opt/kit/lib
COPY kit /opt/kit/kit
# SGLang keeps the image's user: its kernel caches lie in that user's home and cannot be fetched again without a
# network. The client runs as nobody. Neither may reach further than its own network (kit/engine/docker.py).
ENTRYPOINT []
CMD ["python3", "-m", "kit.client", "--help"]
LABEL sglang-speculation-kit.version="${KIT_VERSION}" \
      sglang-speculation-kit.context="${KIT_CONTEXT}" \
      sglang-speculation-kit.sglang="${SGLANG}" \
      sglang-speculation-kit.base="${BASE}"

# One image for every role: `ledgermq broker`, `ledgermq nameserver`, and the tools.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
# The dependencies first: they change seldom, the sources often.
COPY pyproject.toml README.md ./
COPY server server
RUN mkdir ledgermq && touch ledgermq/__init__.py \
 && python -m venv /opt/ledgermq && /opt/ledgermq/bin/pip install --no-cache-dir . ./server \
 && /opt/ledgermq/bin/pip uninstall -q -y ledgermq ledgermq-server && rm -r ledgermq build server/build
# All rooms: .dockerignore says what is none.
COPY . .
RUN /opt/ledgermq/bin/pip install --no-cache-dir --no-deps . ./server

FROM python:3.11-slim-bookworm
COPY --from=build /opt/ledgermq /opt/ledgermq
ENV PATH=/opt/ledgermq/bin:$PATH PYTHONUNBUFFERED=1
RUN mkdir -p /var/lib/ledgermq /etc/ledgermq && chown 10001 /var/lib/ledgermq
USER 10001
VOLUME /var/lib/ledgermq
# The node is process 1: SIGTERM reaches it, and it stops in order.
ENTRYPOINT ["ledgermq"]
CMD ["--help"]

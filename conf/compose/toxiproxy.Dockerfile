# Toxiproxy, for profile chaos of docker-compose.yml.
FROM golang:1.26-bookworm AS build
RUN CGO_ENABLED=0 go install github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0

FROM scratch
COPY --from=build /go/bin/server /toxiproxy
ENTRYPOINT ["/toxiproxy"]

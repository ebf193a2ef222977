# The image of pglimit: one static program, under the names pglimit and ratelimit, without a shell.
#
#   docker build --build-arg VERSION=v0.1.0 -t pglimit .
#
# scripts/image makes the same image where Docker reaches no registry.
FROM golang:1.26 AS build
ARG VERSION
WORKDIR /src
COPY . .
RUN scripts/image files /image "$VERSION"

FROM scratch
ARG VERSION=development
ARG REVISION=unknown
LABEL org.opencontainers.image.title="pglimit" \
      org.opencontainers.image.description="Rate limits and spend limits in PostgreSQL" \
      org.opencontainers.image.source="https://github.com/pglimit/pglimit" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /image/ /
USER 65532:65532
# HTTP, gRPC, and the operators' address of pglimit serve; HTTP and gRPC of ratelimit.
EXPOSE 8080 8081 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["/pglimit", "serve", "health"]
ENTRYPOINT ["/pglimit"]
CMD ["help"]

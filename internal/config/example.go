package config

// Example holds one record of each kind, with every field, as a person would write
// them. The reference shows it, and tests read it.
const Example = `kind: organization
name: acme
description: shops in Europe
---
kind: role
name: ingress
sessions: {ttl: 8h, idle: 30m, max: 10000}
issuers:
  - name: login
    url: https://login.example
    audiences: [shop]
    keys:
      - |
        -----BEGIN PUBLIC KEY-----
        MCowBQYDK2VwAyEAi9cOxoMn0SNFI6WGMQZmqS4BVV9n9zAmQQuRiVDrvfQ=
        -----END PUBLIC KEY-----
max_sessions: 5000
---
kind: secret
name: db-password
organization: acme
roles: [egress, ingress]
resolver: vault
path: kv/shop/db
version: "7"
---
kind: resource
name: orders-db
organization: acme
roles: [egress, ingress]
type: postgres
address: orders.db.example:5432
connector: pg-1
parameters: {sslmode: verify-full}
secrets: [db-password]
---
kind: qos
name: gold
priority: 10
min_kbps: 1000
max_kbps: 50000
---
kind: peer
name: db-1
roles: [core, storage]
member: data/db-1
addresses: ["db-1.example:7443", "[2001:db8::1]:7443"]
class: active
---
kind: service
name: web
organization: acme
roles: [egress, ingress]
type: container
addresses: ["web.example:8080"]
members: [data/node-c]
qos: gold
resources: [orders-db]
secrets: [db-password]
parameters: {image: registry.example/web, replicas: "2"}
expose: {address: "web.example:8080", protocol: http}
workload:
  id: shop/web
  uid: 1001
  gid: 1001
  path: /usr/bin/shop-web
  sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
  unit: shop-web.service
  container: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
  ttl: 30m
---
kind: route
name: shop
organization: acme
service: web
match: host=shop.example
to: [db-1]
via: [db-1]
priority: 100
ttl: 5m
entry: true
---
kind: storage
name: mirror
url: https://snapshots.example/prod
families: [peer_directory, trust_bundle]
priority: 5
shard: {replicas: [db-1], factor: 1}
---
kind: degraded
name: shops
organization: acme
roles: [egress, ingress]
allow: [continue_services, preserve_routes]
max: 12h
route_ttl: 1h
session_ttl: 30m
trials: {route_policy: 2m}
`

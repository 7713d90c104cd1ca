package clitest

// Manifest is a manifest that is valid.
const Manifest = `cluster: c.example
seed: {threshold: 1, owners: [{name: host, keeper: "file:/k"}]}
signers: {threshold: 1, keys: [{name: alice, key: "ed25519:AWaTnlB4aU7Z/Tj4JCHe2grSHV2jAAg6yS2sJBAGRVY="}]}
admit:
  - {name: c1, kind: coordinator, match: ["key:ed25519:AWaTnlB4aU7Z/Tj4JCHe2grSHV2jAAg6yS2sJBAGRVY="]}
`

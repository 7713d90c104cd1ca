package snapshot_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/snapshot"
)

// The examples are put together at run time, so that no scanner takes this file for a leak.
var (
	drawn = func(n int) []byte {
		var out []byte
		for i := 0; len(out) < n; i++ {
			sum := sha256.Sum256(fmt.Appendf(nil, "example %d", i))
			out = append(out, sum[:]...)
		}
		return out[:n]
	}
	key32  = base64.StdEncoding.EncodeToString(drawn(32))
	hex32  = hex.EncodeToString(drawn(32))
	url64  = base64.RawURLEncoding.EncodeToString(drawn(64))
	word   = "hunter" + "2"
	letter = strings.NewReplacer("-", "a", "_", "b").Replace(base64.RawURLEncoding.EncodeToString(drawn(120)))
)

func pemOf(label string) string {
	return "-----BEGIN " + label + "-----\n" + key32 + "\n-----END " + label + "-----\n"
}

// Each form that a secret has in the files and on the command lines that people paste is found in a text.
func TestRawSecretsAreFound(t *testing.T) {
	for name, text := range map[string]string{
		// WireGuard
		"WireGuard, a private key":       "[Interface]\nPrivateKey = " + key32 + "\nListenPort = 51820\n",
		"WireGuard, a pre-shared key":    "[Peer]\nPublicKey = " + key32 + "\nPresharedKey = " + key32 + "\n",
		"WireGuard, without spaces":      "PrivateKey=" + key32,
		"WireGuard, a key that begins /": "PrivateKey = /" + key32[1:],
		"WireGuard, its protocol":        "set=1\nprivate_key=" + hex32 + "\n",
		"WireGuard, YAML":                "interface:\n  private_key: " + key32 + "\n",
		"WireGuard, JSON":                `{"PrivateKey": "` + key32 + `"}`,
		// OpenVPN
		"OpenVPN, a static key":        "-----BEGIN OpenVPN " + "Static key V1-----\n" + hex32[:32] + "\n-----END OpenVPN Static key V1-----",
		"OpenVPN, user and password":   "client\n<auth-user-pass>\nalice\n" + word + "\n</auth-user-pass>\n",
		"OpenVPN, a proxy's":           "<http-proxy-user-pass>\nalice\n" + word + "\n</http-proxy-user-pass>",
		"OpenVPN, an inline key":       "<key>\n" + pemOf("PRIVATE "+"KEY") + "</key>",
		"OpenVPN, an inline key, bare": "<key>\n" + key32 + "\n</key>",
		"OpenVPN, a secret":            "<secret>\n" + hex32 + "\n</secret>",
		"OpenVPN, tls-crypt":           "<tls-crypt>\n" + hex32 + "\n</tls-crypt>",
		"OpenVPN, tls-auth":            "<tls-auth>\n#\n# 2048 bit OpenVPN static key\n#\n" + hex32 + "\n</tls-auth>",
		"OpenVPN, tls-crypt-v2":        "-----BEGIN OpenVPN tls-crypt-v2 " + "client key-----\n" + key32,
		// IPsec
		"IPsec, a pre-shared key":        `10.0.0.1 %any : PSK "` + word + `"`,
		"IPsec, alone":                   `PSK "` + word + `"`,
		"IPsec, in hex":                  ": PSK 0x" + hex32,
		"IPsec, in base64":               ": PSK 0s" + key32,
		"IPsec, an RSA key":              ": RSA {\n\tModulus: 0x" + hex32 + "\n\tPrivateExponent: 0x" + hex32 + "\n}",
		"IPsec, an RSA key's passphrase": `: RSA gw.pem "` + word + `"`,
		"IPsec, a user":                  `alice : EAP "` + word + `"`,
		"IPsec, XAUTH":                   `alice : XAUTH "` + word + `"`,
		"IPsec, a PIN":                   ": PIN %smartcard1 1234",
		"IPsec, swanctl":                 "ike-1 {\n  secret = 0s" + key32 + "\n}",
		"IPsec, swanctl, words":          `ike-1 { secret = "` + word + `!pass" }`,
		"IPsec, a router":                "crypto isakmp key " + word + " address 192.0.2.1",
		"IPsec, another router":          "set security ike policy p pre-shared-key ascii-text \"" + word + "\"",
		"a router, type 7":               "username admin password 7 0822455D0A16",
		"a router, in the clear":         "enable password 0 " + word,
		// RDP
		".rdp":                "full address:s:gw.example\npassword 51:b:01000000D08C9DDF0115D1118C7A00C04FC297EB\n",
		"xfreerdp":            "xfreerdp /v:gw.example /u:alice /p:" + word,
		"xfreerdp, quoted":    "xfreerdp /u:alice /p:'" + word + "' /v:gw.example",
		"xfreerdp, a gateway": "xfreerdp /v:a /gp:" + word,
		"rdesktop":            "rdesktop -u alice -p " + word + " gw.example",
		"cmdkey":              "cmdkey /generic:TERMSRV/gw /user:alice /pass:" + word,
		// VNC
		"VNC, a file":  "[ConnMethod]\nHost=gw.example\nPassword=0123456789abcdef\n",
		"VNC, x11vnc":  "x11vnc -display :0 -passwd " + word,
		"VNC, libvirt": "<graphics type='vnc' port='5900' passwd='" + word + "'/>",
		"SPICE":        "remote-viewer spice://gw?password=" + word,
		// SSH
		"sshpass":                        "sshpass -p " + word + " ssh alice@gw.example",
		"sshpass, joined":                "sshpass -p" + word + " ssh alice@gw.example",
		"sshpass, quoted":                "sshpass -p '" + word + "' scp a b:",
		"sshpass, by environment":        "SSHPASS=" + word + " sshpass -e ssh gw",
		"plink":                          "plink -ssh alice@gw -pw " + word,
		"a private key":                  pemOf("OPENSSH PRIVATE " + "KEY"),
		"a private key of SSH2":          "---- BEGIN SSH2 ENCRYPTED PRIVATE " + "KEY ----\nComment: \"rsa\"\n",
		"a private key of PGP":           "-----BEGIN PGP PRIVATE " + "KEY BLOCK-----\n\n" + key32,
		"a private key in base64 of PEM": "client-key-data: " + base64.StdEncoding.EncodeToString([]byte(pemOf("RSA PRIVATE "+"KEY"))),
		"a private key, alone":           base64.StdEncoding.EncodeToString([]byte(pemOf("EC PRIVATE " + "KEY"))),
		"a private key in DER, Ed25519":  "MC4CAQAwBQYDK2V" + "wBCIEI" + key32,
		"a private key in DER, P-256":    "MIGHAgEAMBMGByqGSM49" + "AgEGCCqGSM49AwEHBG0wawIBAQQg" + key32,
		"a private key in DER, SEC 1":    "MHcCAQEEI" + key32,
		"a private key in DER, RSA":      "MIIEpAIBAAKC" + "AQEA" + letter + letter,
		"a private key in DER, PKCS #8":  "MIIEvQIBADANBgkqhkiG9w0" + "BAQEFAASCBKcwggSjAgEAAoIBAQC" + letter + letter,
		"a key of OpenSSH in base64":     "b3BlbnNzaC1rZXktdjEA" + "AAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2g" + key32,
		"a JSON web key":                 `{"kty":"EC","crv":"P-256","d":"` + url64[:43] + `","x":"` + url64[:43] + `"}`,
		"a symmetric JSON web key":       `{"kty": "oct", "k": "` + url64 + `"}`,
		// Databases
		"a URL":            "postgres://app:" + word + "@db.example/app",
		"a URL of Redis":   "redis://:" + word + "@cache.example:6379/0",
		"a URL of MongoDB": "mongodb+srv://app:" + word + "@cluster0.example/?retryWrites=true",
		"a URL of AMQP":    "amqps://app:" + word + "@mq.example:5671/%2f",
		"libpq":            "host=db.example user=app password=" + word + " dbname=app",
		"libpq, quoted":    "host=db.example user=app password='" + word + "'",
		"ODBC":             "Driver={PostgreSQL};Server=db;Uid=app;Pwd=" + word + ";",
		"ADO":              "Server=db;User Id=app;Password=" + word,
		"Go, MySQL":        "app:" + word + "@tcp(db.example:3306)/app",
		"Oracle":           "jdbc:oracle:thin:app/" + word + "@db.example:1521:orcl",
		"JDBC":             "jdbc:postgresql://db/app?user=app&password=" + word,
		".netrc":           "machine db.example login app password " + word,
		"mysql":            "mysql -u app -p" + word + " app",
		"redis-cli":        "redis-cli -h cache -a " + word,
		"PGPASSWORD":       "PGPASSWORD=" + word + " psql -h db",
		"MYSQL_PWD":        "MYSQL_PWD=" + word + " mysql",
		// Words with a value
		"JSON":                   `{"password":"x"}`,
		"JSON, with spaces":      `{"user": "alice", "password" : "x y"}`,
		"JSON in JSON":           `{\"password\":\"x\"}`,
		"JSON, another word":     `{"clientSecret":"` + word + `"}`,
		"YAML":                   "user: alice\npassword: " + word + "\n",
		"YAML, quoted":           "password: '" + word + "'",
		"YAML, with a comment":   "password: " + word + " # of the test system",
		"YAML, in one line":      "{user: alice, password: " + word + "}",
		"INI":                    "[db]\npassword = " + word + "\n",
		"TOML":                   `password = "` + word + `"`,
		"XML":                    "<password>" + word + "</password>",
		"an attribute":           `<user name="alice" password="` + word + `"/>`,
		"Ruby":                   `:password => "` + word + `"`,
		"Go":                     `password := "` + word + `"`,
		"shell":                  "export DB_PASSWORD=" + word,
		"an option":              "tool --password " + word + " --host db",
		"an option, joined":      "tool --password=" + word,
		"an option, a token":     "tool --token " + letter[:40],
		"a passphrase":           "wpa_passphrase=" + word,
		"a network":              "network={\n  ssid=\"office\"\n  psk=\"" + word + "\"\n}",
		"Ansible":                "ansible_ssh_pass: " + word,
		"Django":                 "SECRET_KEY = '" + letter[:50] + "'",
		"an API key in a header": "X-API-Key: " + letter[:32],
		"a registry":             `{"auths": {"r.example": {"auth": "` + base64.StdEncoding.EncodeToString([]byte("alice:"+word)) + `"}}}`,
		"npmrc":                  "//registry.example/:_authToken=" + letter[:36],
		"curl":                   "curl -u alice:" + word + " https://api.example/",
		"curl, long":             "curl --user 'alice:" + word + "' https://api.example/",
		"ldapsearch":             "ldapsearch -D cn=admin -w " + word + " -b dc=example",
		"openssl":                "openssl pkcs12 -passin pass:" + word + " -in a.p12",
		// Clouds and services
		"AWS, a secret key":       "aws_secret_access_key = " + letter[:40],
		"AWS, an access key":      "AKIA" + "ABCDEFGHIJKLMNOP",
		"AWS, another":            "ACCA" + "ABCDEFGHIJKLMNOP",
		"Azure, an account":       "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=" + key32 + ";",
		"Azure, a bus":            "Endpoint=sb://b.example/;SharedAccessKeyName=n;SharedAccessKey=" + key32,
		"Azure, a client":         "abc8" + "Q~" + letter[:34],
		"GCP, a key":              "AIza" + letter[:35],
		"GCP, a client":           "GOCSPX-" + letter[:28],
		"GCP, an access token":    "ya29." + letter[:60],
		"GitHub":                  "ghp_" + letter[:36],
		"GitLab":                  "glrt-" + letter[:20],
		"Slack":                   "xoxb-" + "123456789012-123456789012-" + letter[:24],
		"Slack, an app":           "xapp-" + "1-A0123456789-1234567890123-" + hex32,
		"Slack, a webhook":        "https://hooks.slack.com/services/T01234567/B01234567/" + letter[:24],
		"Stripe":                  "sk_live_" + letter[:24],
		"Stripe, a test key":      "sk_test_" + letter[:24],
		"DigitalOcean":            "dop_v1_" + hex32,
		"Databricks":              "dapi" + hex32[:32],
		"Grafana":                 "glsa_" + letter[:32] + "_0123abcd",
		"Hugging Face":            "hf_" + letter[:34],
		"OpenAI":                  "sk-proj-" + letter[:80],
		"Anthropic":               "sk-ant-api03-" + letter[:93] + "AA",
		"Shopify":                 "shpat_" + hex32[:32],
		"PyPI":                    "pypi-AgEIcHlwaS5vcmc" + letter[:60],
		"Tailscale":               "tskey-auth-" + letter[:30],
		"Vault":                   "hvs." + letter[:90],
		"Vault, a batch token":    "hvb." + letter[:140],
		"Twilio":                  "SK" + hex32[:32],
		"1Password":               "ops_eyJ" + letter[:150],
		"a web token":             "eyJ" + "hbGciOiJFZERTQSJ9" + ".eyJzdWIiOiJ4In0." + url64,
		"a web token in a header": "Authorization: Bearer eyJ" + "hbGciOiJFZERTQSJ9" + ".eyJzdWIiOiJ4In0." + url64,
		"a bearer token":          "Authorization: Bearer " + letter[:32],
	} {
		if snapshot.SecretIn("", text) == "" {
			t.Errorf("%s: nothing found", name)
		}
		if in := "before it\n" + text + "\nand behind it"; snapshot.SecretIn("", in) == "" && !strings.HasPrefix(text, "{\\") {
			t.Errorf("%s, inside a longer text: nothing found", name)
		}
		if found := snapshot.SecretIn("", text); strings.Contains(found, word) || strings.Contains(found, letter[:20]) {
			t.Errorf("%s: the reason shows the secret: %s", name, found)
		}
	}
	for name, value := range map[string]string{
		"pass": word, "db_pass": word, "psk": word, "wifi-psk": "x", "key": letter[:32], "aes_key": hex32, "passphrase": "x",
		"preshared_key": "x", "presharedKey": "x", "dbPass": "x", "sharedSecret": "x", "password": "x", "client_secret": "x",
	} {
		if snapshot.SecretIn(name, value) == "" {
			t.Errorf("parameter %s: %s: nothing found", name, value)
		}
	}
}

// What is no secret is put without a question: a false alarm stops a change of the fleet.
func TestNoSecretIsFoundWhereThereIsNone(t *testing.T) {
	raw, err := os.ReadFile("testdata/no-secrets.txt")
	if err != nil {
		t.Fatal(err)
	}
	records := strings.Split(string(raw), "\n%%\n")
	if len(records) < 200 {
		t.Errorf("%d records, want 200", len(records))
	}
	for i, text := range records {
		if kind := snapshot.SecretIn("", text); kind != "" {
			t.Errorf("record %d: taken for a %s:\n%s", i+1, kind, text)
		}
		for _, line := range strings.Split(text, "\n") {
			if kind := snapshot.SecretIn("", line); kind != "" {
				t.Errorf("record %d, a line: taken for a %s:\n%s", i+1, kind, line)
			}
			// A line of a name and a value is a parameter, too.
			if name, value, ok := strings.Cut(line, ": "); ok && !strings.Contains(name, " ") && !strings.ContainsAny(name, `"{`) && !strings.Contains(value, ", ") {
				if kind := snapshot.SecretIn(name, strings.TrimSpace(value)); kind != "" && snapshot.SecretName(name) == "" {
					t.Errorf("record %d, a parameter: taken for a %s:\n%s", i+1, kind, line)
				}
			}
		}
	}
}

// What a parameter of a name may hold.
func TestParametersThatAreNone(t *testing.T) {
	for name, value := range map[string]string{
		"key": "topology.kubernetes.io/zone", "public_key": key32, "host_key": key32, "sort_key": letter[:32], "key_id": hex32,
		"pass": "true", "bypass": "internal", "psk": "vault://kv/wifi#psk", "db_pass": "${DB_PASS}", "keyboard": "us", "compass": "north",
		"passphrase_file": "/run/x", "secret_ref": "vault://kv/db#password",
	} {
		if kind := snapshot.SecretIn(name, value); kind != "" {
			t.Errorf("parameter %s: %s: taken for a %s", name, value, kind)
		}
	}
}

// A text costs its length, whatever it is made of.
func BenchmarkSecretIn(b *testing.B) {
	raw, err := os.ReadFile("testdata/no-secrets.txt")
	if err != nil {
		b.Fatal(err)
	}
	if kind := snapshot.SecretIn("", string(raw)); kind != "" {
		b.Fatal("taken for a ", kind)
	}
	for name, text := range map[string]string{
		"records": strings.Repeat(string(raw), 1<<20/len(raw)+1), "separators": strings.Repeat("key: ", 1<<18),
		"commands": strings.Repeat("sshpass ", 1<<17), "passwords": strings.Repeat("password=${A} ", 1<<16), "tags": strings.Repeat("<key>", 1<<18),
		"at": strings.Repeat("a:b@", 1<<18), "one word": strings.Repeat("a", 1<<20), "dashes": strings.Repeat("-", 1<<20),
		"keys": strings.Repeat(`"kty""d"`, 1<<17), "dots": strings.Repeat("dp.", 1<<18), "schemes": strings.Repeat("a://", 1<<18),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				_ = snapshot.SecretIn("", text)
			}
		})
	}
}

package snapshot

import (
	"encoding/base64"
	"strings"
)

// learned are forms that stand at the beginning of a word, and that check 12 does not know; see [SecretIn].
//
// The tokens of services are those of gitleaks 8.30.0 (github.com/gitleaks/gitleaks, config/gitleaks.toml; MIT, Copyright
// (c) 2019 Zachary Rice) that begin with something of their own, each with the alphabet and the length of
// its rule. Its other rules are left out: they take a word in the text for half of the proof, and are
// often wrong. They are a table and no regular expressions, since whoever puts config waits for them.
var learned = []secretForm{
	// Keys in base64 and DER: what PKCS #8, SEC 1, PKCS #1 and OpenSSH begin with.
	{kind: "private key in base64", begin: "LS0tLS", is: func(rest string) bool {
		n := min(tokenRun(rest), 72) / 4 * 4
		// The beginning has six characters: decoding goes on at the next whole group.
		raw, err := base64.StdEncoding.DecodeString(("LS0tLS" + rest[:n])[:n])
		return err == nil && strings.Contains(strings.ToLower(string(raw)), "private key") ||
			err == nil && strings.Contains(string(raw), "OpenVPN Static")
	}},
	{kind: "private key in base64", begin: "MC4CAQAwBQYDK2V", is: minRun(base64Bytes, 40)},
	{kind: "private key in base64", begin: "MFECAQEwBQYDK2V", is: minRun(base64Bytes, 40)},
	{kind: "private key in base64", begin: "MIGHAgEAMBMGByqGSM49", is: minRun(base64Bytes, 40)},
	{kind: "private key in base64", begin: "MIG2AgEAMBAGByqGSM49", is: minRun(base64Bytes, 40)},
	{kind: "private key in base64", begin: "MHcCAQEEI", is: minRun(base64Bytes, 40)},
	{kind: "private key in base64", begin: "MIGkAgEBBD", is: minRun(base64Bytes, 40)},
	{kind: "private key in base64", begin: "MII", is: func(rest string) bool {
		// SEQUENCE, INTEGER 0, then a modulus, or the algorithm of PKCS #8.
		n := wordRun(rest[:min(len(rest), 200)], base64Bytes)
		return n >= 200 && (strings.HasPrefix(rest[3:], "IBAAK") || strings.HasPrefix(rest[3:], "IBADANBgkqhkiG9w0"))
	}},
	{kind: "private key in base64", begin: "b3BlbnNzaC1rZXktdjEA", is: minRun(base64Bytes, 40)},
	{kind: "JSON web token in base64", begin: "ZXlKaGJHY2lPaU", is: minRun(base64Bytes, 60)},
	{kind: "key of a tunnel", begin: "eyJhIjoi", is: minRun(base64Bytes, 60)},
	// Of remote desktops.
	{kind: "password of a remote desktop", begin: "password 51:b:", fold: true, is: atLeast(1)},
	{kind: "password of a device", begin: "password ", fold: true, is: ciscoSecret},
	{kind: "password of a device", begin: "secret ", fold: true, is: ciscoSecret},
	{kind: "pre-shared key", begin: "pre-shared-key ", fold: true, is: func(rest string) bool {
		for _, how := range []string{"ascii-text ", "hexadecimal ", "local ", "remote ", "hex ", "0 ", "6 "} {
			rest = strings.TrimPrefix(rest, how)
		}
		value, _ := argument(rest)
		return isPassword(value) && !isReference(value)
	}},
	{kind: "secret of ipsec", begin: "PSK ", is: func(rest string) bool { return isQuotedSecret(strings.TrimLeft(rest, " \t")) }},
	{kind: "secret of ipsec", begin: "RSA {", is: func(rest string) bool {
		return strings.Contains(rest[:min(len(rest), 4096)], "PrivateExponent")
	}},
	// Of services.
	{kind: "1Password key", begin: "A3-", is: minRun(upperDigitsDash, 28)},
	{kind: "1Password token", begin: "ops_eyJ", is: minRun(base64Bytes, 100)},
	{kind: "Adobe secret", begin: "p8e-", is: minRun(alnum, 32)},
	{kind: "Alibaba access key", begin: "LTAI", is: exactRun(alnum, 20)},
	{kind: "Anthropic key", begin: "sk-ant-", is: minRun(urlBytes, 80)},
	{kind: "Artifactory key", begin: "AKCp", is: minRun(alnum, 69)},
	{kind: "Artifactory token", begin: "cmVmd", is: exactRun(alnum, 59)},
	{kind: "AWS access key", begin: "ABIA", is: exactRun(upperDigits, 16)},
	{kind: "AWS access key", begin: "ACCA", is: exactRun(upperDigits, 16)},
	{kind: "AWS Bedrock key", begin: "ABSK", is: minRun(base64Bytes, 100)},
	{kind: "AWS Bedrock key", begin: "bedrock-api-key-", is: minRun(base64Bytes, 20)},
	{kind: "ClickHouse key", begin: "4b1d", is: exactRun(alnum, 38)},
	{kind: "Clojars token", begin: "CLOJARS_", fold: true, is: minRun(alnum, 60)},
	{kind: "Databricks token", begin: "dapi", is: minRun(hexBytes, 32)},
	{kind: "DigitalOcean token", begin: "doo_v1_", is: minRun(hexBytes, 64)},
	{kind: "DigitalOcean token", begin: "dop_v1_", is: minRun(hexBytes, 64)},
	{kind: "DigitalOcean token", begin: "dor_v1_", is: minRun(hexBytes, 64)},
	{kind: "Doppler token", begin: "dp.", is: func(rest string) bool {
		kind, rest, ok := strings.Cut(rest, ".")
		return ok && len(kind) <= 5 && wordRun(rest, alnum) >= 40
	}},
	{kind: "Duffel token", begin: "duffel_", is: minRun(urlBytes, 43)},
	{kind: "Dynatrace token", begin: "dt0c01.", is: minRun(alnum, 24)},
	{kind: "EasyPost key", begin: "EZAK", is: exactRun(alnum, 54)},
	{kind: "EasyPost key", begin: "EZTK", is: exactRun(alnum, 54)},
	{kind: "Flutterwave key", begin: "FLWSECK_TEST-", is: minRun(alnum, 12)},
	{kind: "Fly token", begin: "fo1_", is: minRun(urlBytes, 43)},
	{kind: "Fly token", begin: "fm1a_", is: minRun(base64Bytes, 100)},
	{kind: "Fly token", begin: "fm1r_", is: minRun(base64Bytes, 100)},
	{kind: "Fly token", begin: "fm2_", is: minRun(base64Bytes, 100)},
	{kind: "Frame.io token", begin: "fio-u-", is: minRun(urlBytes, 64)},
	{kind: "GitLab token", begin: "glcbt-", is: minRun(urlBytes, 20)},
	{kind: "GitLab token", begin: "gldt-", is: minRun(urlBytes, 20)},
	{kind: "GitLab token", begin: "glffct-", is: minRun(urlBytes, 20)},
	{kind: "GitLab token", begin: "glft-", is: minRun(urlBytes, 20)},
	{kind: "GitLab token", begin: "glimt-", is: minRun(urlBytes, 25)},
	{kind: "GitLab token", begin: "glagent-", is: minRun(urlBytes, 50)},
	{kind: "GitLab token", begin: "gloas-", is: minRun(urlBytes, 64)},
	{kind: "GitLab token", begin: "glptt-", is: minRun(hexBytes, 40)},
	{kind: "GitLab token", begin: "GR1348941", is: minRun(urlBytes, 20)},
	{kind: "GitLab token", begin: "glrt-", is: minRun(urlBytes, 20)},
	{kind: "GitLab token", begin: "glsoat-", is: minRun(urlBytes, 20)},
	{kind: "GitLab session", begin: "_gitlab_session=", is: minRun(alnum, 32)},
	{kind: "Google client secret", begin: "GOCSPX-", is: minRun(urlBytes, 20)},
	{kind: "Google access token", begin: "ya29.", is: minRun(urlBytes, 20)},
	{kind: "Google refresh token", begin: "1//0", is: minRun(urlBytes, 40)},
	{kind: "Grafana key", begin: "eyJrIjoi", is: minRun(base64Bytes, 70)},
	{kind: "Grafana token", begin: "glc_", is: minRun(base64Bytes, 32)},
	{kind: "Grafana token", begin: "glsa_", is: minRun(alnum, 32)},
	{kind: "Heroku key", begin: "HRKU-AA", is: minRun(urlBytes, 50)},
	{kind: "Hugging Face token", begin: "hf_", is: exactRun(alnum, 34)},
	{kind: "Hugging Face token", begin: "api_org_", is: exactRun(alnum, 34)},
	{kind: "Infracost key", begin: "ico-", is: exactRun(alnum, 32)},
	{kind: "Intra42 secret", begin: "s-s4t2", is: minRun(urlBytes, 60)},
	{kind: "Linear key", begin: "lin_api_", is: minRun(alnum, 40)},
	{kind: "Notion token", begin: "ntn_", is: minRun(alnum, 40)},
	{kind: "Octopus key", begin: "API-", is: exactRun(upperDigits, 26)},
	{kind: "OpenAI key", begin: "sk-proj-", is: minRun(urlBytes, 40)},
	{kind: "OpenAI key", begin: "sk-svcacct-", is: minRun(urlBytes, 40)},
	{kind: "OpenAI key", begin: "sk-admin-", is: minRun(urlBytes, 40)},
	{kind: "OpenAI key", begin: "sk-", is: func(rest string) bool {
		return wordRun(rest, alnum) >= 40 && strings.Contains(rest[:40], "T3BlbkFJ")
	}},
	{kind: "OpenShift token", begin: "sha256~", is: exactRun(urlBytes, 43)},
	{kind: "Perplexity key", begin: "pplx-", is: minRun(alnum, 48)},
	{kind: "PlanetScale token", begin: "pscale_tkn_", is: minRun(urlBytes, 32)},
	{kind: "PlanetScale token", begin: "pscale_oauth_", is: minRun(urlBytes, 32)},
	{kind: "PlanetScale password", begin: "pscale_pw_", is: minRun(urlBytes, 32)},
	{kind: "Postman key", begin: "PMAK-", is: minRun(urlBytes, 50)},
	{kind: "Prefect token", begin: "pnu_", is: exactRun(alnum, 36)},
	{kind: "Pulumi token", begin: "pul-", is: exactRun(hexBytes, 40)},
	{kind: "PyPI token", begin: "pypi-AgEIcHlwaS5vcmc", is: minRun(urlBytes, 50)},
	{kind: "ReadMe key", begin: "rdme_", is: minRun(alnum, 70)},
	{kind: "RubyGems key", begin: "rubygems_", is: minRun(hexBytes, 48)},
	{kind: "Scalingo token", begin: "tk-us-", is: minRun(urlBytes, 48)},
	{kind: "Sendinblue key", begin: "xkeysib-", is: minRun(hexBytes, 64)},
	{kind: "Sentry token", begin: "sntrys_eyJ", is: minRun(base64Bytes, 40)},
	{kind: "Sentry token", begin: "sntryu_", is: minRun(hexBytes, 64)},
	{kind: "SettleMint token", begin: "sm_aat_", is: exactRun(alnum, 16)},
	{kind: "SettleMint token", begin: "sm_pat_", is: exactRun(alnum, 16)},
	{kind: "SettleMint token", begin: "sm_sat_", is: exactRun(alnum, 16)},
	{kind: "Shippo token", begin: "shippo_live_", is: minRun(hexBytes, 40)},
	{kind: "Shippo token", begin: "shippo_test_", is: minRun(hexBytes, 40)},
	{kind: "Shopify token", begin: "shpat_", is: minRun(hexBytes, 32)},
	{kind: "Shopify token", begin: "shpca_", is: minRun(hexBytes, 32)},
	{kind: "Shopify token", begin: "shppa_", is: minRun(hexBytes, 32)},
	{kind: "Shopify secret", begin: "shpss_", is: minRun(hexBytes, 32)},
	{kind: "Slack token", begin: "xapp-", is: minRun(urlBytes, 20)},
	{kind: "address of a Slack webhook", begin: "hooks.slack.com/", is: func(rest string) bool {
		_, rest, ok := strings.Cut(rest, "/")
		return ok && tokenRun(rest) >= 40
	}},
	{kind: "address of a Discord webhook", begin: "discord.com/api/webhooks/", is: atLeast(60)},
	{kind: "address of a Teams webhook", begin: "webhook.office.com/webhookb2/", is: atLeast(30)},
	{kind: "Sourcegraph token", begin: "sgp_", is: minRun(alnumUnder, 40)},
	{kind: "Square token", begin: "sq0atp-", is: minRun(urlBytes, 22)},
	{kind: "Stripe key", begin: "sk_test_", is: minRun(alnum, 10)},
	{kind: "Stripe key", begin: "rk_test_", is: minRun(alnum, 10)},
	{kind: "Stripe key", begin: "sk_prod_", is: minRun(alnum, 10)},
	{kind: "Stripe key", begin: "rk_prod_", is: minRun(alnum, 10)},
	{kind: "Tailscale key", begin: "tskey-", is: minRun(urlBytes, 20)},
	{kind: "Twilio key", begin: "SK", is: exactRun(hexBytes, 32)},
	{kind: "Vault token", begin: "hvb.", is: minRun(urlBytes, 60)},
	{kind: "Vault token", begin: "s.", is: exactRun(alnum, 24)},
}

// ciscoSecret is what follows "password" or "secret" in the config of a router: how it is written, and the secret.
// Types 5, 8 and 9 are salted hashes.
func ciscoSecret(rest string) bool {
	if len(rest) < 6 || rest[1] != ' ' || rest[0] != '0' && rest[0] != '6' && rest[0] != '7' {
		return false
	}
	value, _ := argument(rest[2:])
	return rest[0] == '7' && wordRun(value, hexBytes) == len(value) && len(value) >= 4 || rest[0] != '7' && isPassword(value)
}

type alphabet [256]bool

func alphabetOf(ranges string, more string) *alphabet {
	var a alphabet
	for i := 0; i+1 < len(ranges); i += 2 {
		for c := int(ranges[i]); c <= int(ranges[i+1]); c++ {
			a[c] = true
		}
	}
	for i := range len(more) {
		a[more[i]] = true
	}
	return &a
}

var (
	alnum           = alphabetOf("azAZ09", "")
	alnumUnder      = alphabetOf("azAZ09", "_")
	hexBytes        = alphabetOf("afAF09", "")
	upperDigits     = alphabetOf("AZ09", "")
	upperDigitsDash = alphabetOf("AZ09", "-")
	base64Bytes     = alphabetOf("azAZ09", "+/=-_")
	urlBytes        = alphabetOf("azAZ09", "-_")
)

// wordRun returns how many bytes of a s begins with.
func wordRun(s string, a *alphabet) int {
	n := 0
	for n < len(s) && a[s[n]] {
		n++
	}
	return n
}

func minRun(a *alphabet, n int) func(string) bool {
	return func(rest string) bool { return wordRun(rest[:min(len(rest), n)], a) >= n }
}

// exactRun is for forms whose beginning is short, so that their length has to tell.
func exactRun(a *alphabet, n int) func(string) bool {
	return func(rest string) bool {
		return wordRun(rest[:min(len(rest), n+1)], a) == n && (len(rest) == n || !isWordByte(rest[n]) && rest[n] != '-')
	}
}

// learnedStarts are the learned forms by their first byte, in either case for those that fold.
var learnedStarts = func() (all [256][]*secretForm) {
	for i := range learned {
		f := &learned[i]
		first := f.begin[0]
		all[first] = append(all[first], f)
		if upper := upperASCII(first); f.fold && upper != first {
			all[upper] = append(all[upper], f)
		}
	}
	return all
}()

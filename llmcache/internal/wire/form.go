package wire

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// FieldWriter takes a list of fields, each with its length before it, so that no
// two lists run together: canonical.Hasher is one.
type FieldWriter interface {
	Write(field []byte)
	WriteString(field string)
}

// keyHeaders change the answer, or the account it is made for. All other headers
// are out: credentials (Authorization, X-Api-Key, Api-Key, X-Goog-Api-Key, AWS
// signature and date) must not reach a key, and what differs between two equal
// calls would make the second one paid again (X-Stainless-*, X-Server-Timeout,
// Traceparent, Baggage, Idempotency-Key, request IDs, User-Agent). A list of
// what is in fails by a missing hit where a host uses a header of its own
// differently, and the host can name it; a list of what is out fails in silence
// with each new tracing library.
var keyHeaders = []string{
	"Accept", // some servers choose JSON or a stream by it
	"Anthropic-Beta",
	"Anthropic-Version",
	"Openai-Beta",
	"Openai-Organization", // fine-tuned models and data policies belong to it
	"Openai-Project",
	"X-Amzn-Bedrock-Accept",
	"X-Amzn-Bedrock-Guardrailidentifier",
	"X-Amzn-Bedrock-Guardrailversion",
	"X-Amzn-Bedrock-Performanceconfig-Latency",
	"X-Amzn-Bedrock-Trace",
	"X-Goog-User-Project", // who is billed
}

// queryCredentials are query parameters that authenticate, in lower case. Those
// of a presigned AWS URL go by their prefix.
var queryCredentials = []string{"key", "api_key", "api-key", "apikey", "access_token", "subscription-key", "sig", "token"}

// Fields writes the canonical form of the call: everything in r that changes its
// answer, and nothing that differs between two equal calls. Equal calls write
// equal fields; different ones write different fields. headers are further
// header names of the host's that change the answer. r is the Request that
// Recognise saw; only a cacheable Call has a form.
//
// The host name counts: two servers that call a model by the same name are not
// known to be the same. The scheme and a default port do not.
func (c Call) Fields(w FieldWriter, r Request, headers ...string) {
	w.WriteString(strings.ToUpper(r.Method))
	w.WriteString(hostOf(r.URL))
	w.WriteString(r.URL.EscapedPath())
	writeQuery(w, r.URL.RawQuery)
	writeHeaders(w, r.Header, headers)
	c.body.writeFields(w)
}

func hostOf(u *url.URL) string {
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if port == "" || port == "443" || port == "80" {
		return host
	}
	return host + ":" + port
}

func writeQuery(w FieldWriter, raw string) {
	q, err := url.ParseQuery(raw)
	if err != nil { // the server may read it in its own way
		w.WriteString("raw query")
		w.WriteString(raw)
		return
	}
	var names []string
	for name := range q {
		lower := strings.ToLower(name)
		if !slices.Contains(queryCredentials, lower) && !strings.HasPrefix(lower, "x-amz-") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	writeCount(w, len(names))
	for _, name := range names {
		w.WriteString(name)
		writeList(w, q[name])
	}
}

func writeHeaders(w FieldWriter, h http.Header, more []string) {
	names := slices.Clone(keyHeaders)
	for _, name := range more {
		names = append(names, http.CanonicalHeaderKey(name))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	names = slices.DeleteFunc(names, func(name string) bool { return len(h[name]) == 0 })
	writeCount(w, len(names))
	for _, name := range names {
		w.WriteString(name)
		values := h[name]
		if strings.HasSuffix(name, "-Beta") {
			values = betas(values)
		}
		writeList(w, values)
	}
}

// betas splits the lists of feature names and puts them in order: they are a set.
func betas(lines []string) []string {
	var out []string
	for _, line := range lines {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); name != "" {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (b body) writeFields(w FieldWriter) {
	w.WriteString(b.kind)
	switch b.kind {
	case bodyForm:
		writeCount(w, len(b.parts))
		for _, p := range b.parts {
			w.WriteString(p.name)
			w.WriteString(p.filename)
			w.WriteString(p.media)
			w.Write(p.data)
		}
	case bodyRaw:
		w.WriteString(b.media)
		w.Write(b.bytes)
	default:
		w.Write(b.bytes)
	}
}

func writeList(w FieldWriter, values []string) {
	writeCount(w, len(values))
	for _, v := range values {
		w.WriteString(v)
	}
}

func writeCount(w FieldWriter, n int) { w.WriteString(strconv.Itoa(n)) }

// Credential returns what a request authenticates with, "" when nothing known.
// It is for telling tenants apart under a keyed hash and must never be stored or
// logged. An AWS signature differs each time, so the access key ID stands for
// it; a short-lived OAuth token differs each hour, and so does what is returned.
func Credential(u *url.URL, h http.Header) string {
	for _, name := range []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key"} {
		v := h.Get(name)
		if v == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(v, "AWS4-HMAC-SHA256 "); ok {
			_, rest, _ = strings.Cut(rest, "Credential=")
			id, _, _ := strings.Cut(rest, "/")
			return "aws " + id
		}
		return v
	}
	if u == nil {
		return ""
	}
	q := u.Query()
	for _, name := range queryCredentials {
		if v := q.Get(name); v != "" {
			return v
		}
	}
	return ""
}

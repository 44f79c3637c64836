// Package modelserver is a local OpenAI-compatible server that answers from a
// script, for the examples and their tests. A real openai-go client talks to it
// over HTTP; nothing in it is a language model, and every answer says so: the
// model is called "scripted-model", the fingerprint "fp_scripted", and the header
// X-Scripted-Model is set.
//
// It differs from a test double in the client's process in that it counts from
// outside: a supervisor that outlives its workers learns from [Server.Calls] and
// [Server.Summary] what was asked, what was asked twice, and who left before the
// end. It also fails on demand, in the ways that providers do: see [Fault].
//
// # The script
//
// The system message says what is wanted, each marker on a line of its own:
//
//	phase: planning
//	task: risks
//
// The user messages carry sections, of which the script reads <goal>. Known tasks
// are listed by [Tasks]; any other request gets an answer that says that there is
// no script for it. Equal requests get equal answers, unless [WithSamples].
//
// # Endpoints
//
//	POST   /v1/chat/completions   streaming or not
//	GET    /v1/models
//	GET    /_calls                {"summary": ..., "calls": [...]}
//	DELETE /_calls                forgets all calls
//	POST   /_faults               {"n": 1, "kind": "cut", "bytes": 100, "phase": "planning"}
//	DELETE /_faults               forgets all faults and lets go of calls that hang
//	POST   /_release              lets go of calls that hang
//	POST   /_latency              {"call_ms": 10, "chunk_ms": 5}
package modelserver

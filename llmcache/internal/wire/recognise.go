package wire

import "slices"

// recognise judges a call by its body and gives it its judge.
func (to route) recognise(r Request, b body) (Call, Verdict) {
	c := Call{Provider: to.provider, API: to.api, Model: to.model, Stream: to.stream, body: b}
	switch {
	case b.kind == bodyJSON && looksLikeObject(b.bytes):
	case b.kind == bodyForm && (to.api == OpenAIAudio || to.api == OpenAIImages):
		return to.recogniseForm(c)
	default:
		return c, pass(ReasonMalformed)
	}
	choices, reason := 0, Reason("")
	switch to.api {
	case OpenAIChat, OpenAIResponses, OpenAIEmbeddings, OpenAIImages, OpenAIAudio:
		choices, reason = readOpenAI(&c, b.bytes)
	case AnthropicMessages:
		reason = to.readAnthropic(&c, b.bytes)
	case GeminiGenerate, GeminiEmbed:
		choices = to.readGemini(b.bytes)
	case OllamaChat, OllamaEmbed:
		choices, reason = readOllama(&c, b.bytes)
	}
	if reason != "" {
		return c, pass(reason)
	}
	if c.Judge = JudgeOf(to.api, choices); c.Judge == nil {
		return c, pass(ReasonUnjudged)
	}
	return c, Verdict{Cacheable: true}
}

// readOpenAI reads a JSON request of OpenAI's. choices is how many answers it
// asks for.
//
// Only an explicit store:true passes through. Responses are stored at OpenAI by
// default, but no caller relies on what it did not ask for.
func readOpenAI(c *Call, doc []byte) (choices int, reason Reason) {
	n, prompts, inputs := 0, 1, 1
	members(doc, func(name, v []byte) bool {
		switch string(name) {
		case "model":
			if m := text(v); m != "" {
				c.Model = m
			}
		case "stream":
			c.Stream = isTrue(v)
		case "n":
			n = whole(v)
		case "prompt":
			prompts = inputsOf(v)
		case "input":
			inputs = inputsOf(v)
		case "store":
			if isTrue(v) {
				reason = ReasonStored
			}
		case "previous_response_id":
			if given(v) {
				reason = ReasonContinued
			}
		case "conversation":
			if given(v) {
				reason = ReasonConversation
			}
		case "background":
			if isTrue(v) {
				reason = ReasonBackground
			}
		case "tools":
			reason = orReason(reason, readTools(v))
		}
		return true
	})
	if c.API == OpenAIEmbeddings {
		return inputs, reason
	}
	return min(max(n, 1)*prompts, maxChoices), reason
}

// inputsOf returns how many inputs an embedding or completion request holds: a
// string or one list of tokens is one, a list of either is as many.
func inputsOf(v []byte) int {
	if len(v) < 2 || v[0] != '[' {
		return 1
	}
	if v[1] != '"' && v[1] != '[' && v[1] != '{' {
		return 1
	}
	return max(length(v), 1)
}

// readTools finds the tools by which the provider acts rather than answers: a
// remote MCP server does whatever it does, and a named container keeps it.
func readTools(v []byte) (reason Reason) {
	elements(v, func(tool []byte) bool {
		members(tool, func(name, v []byte) bool {
			switch {
			case string(name) == "type" && text(v) == "mcp":
				reason = ReasonSideEffects
			case string(name) == "container" && text(v) != "":
				reason = ReasonContainer
			}
			return true
		})
		return reason == ""
	})
	return reason
}

func orReason(a, b Reason) Reason {
	if a != "" {
		return a
	}
	return b
}

// plainFormats are the forms of a transcription that are no JSON.
var plainFormats = []string{"text", "srt", "vtt"}

// recogniseForm judges a multipart upload: audio to transcribe, an image to edit.
func (to route) recogniseForm(c Call) (Call, Verdict) {
	if m := c.body.field("model"); m != "" {
		c.Model = m
	}
	c.Stream = c.body.field("stream") == "true"
	c.Judge = JudgeOf(to.api, max(whole([]byte(c.body.field("n"))), 1))
	if to.api == OpenAIAudio && slices.Contains(plainFormats, c.body.field("response_format")) {
		c.Judge = audioJudge{plain: true}
	}
	return c, Verdict{Cacheable: true}
}

func (to route) readAnthropic(c *Call, doc []byte) (reason Reason) {
	version := ""
	members(doc, func(name, v []byte) bool {
		switch string(name) {
		case "model":
			if m := text(v); m != "" && to.model == "" {
				c.Model = m
			}
		case "stream":
			c.Stream = to.stream || isTrue(v)
		case "anthropic_version":
			version = text(v)
		case "container":
			if given(v) {
				reason = ReasonContainer
			}
		case "mcp_servers":
			if given(v) {
				reason = ReasonSideEffects
			}
		}
		return true
	})
	// Bedrock's invoke takes the native form of every model it has; only
	// Anthropic's names its version.
	if to.provider == "bedrock" && version == "" {
		return orReason(reason, ReasonUnjudged)
	}
	return reason
}

func (to route) readGemini(doc []byte) (choices int) {
	choices = 1
	members(doc, func(name, v []byte) bool {
		switch string(name) {
		case "generationConfig", "generation_config":
			members(v, func(name, v []byte) bool {
				if s := string(name); s == "candidateCount" || s == "candidate_count" {
					choices = max(whole(v), 1)
				}
				return true
			})
		case "requests":
			choices = max(length(v), 1)
		}
		return true
	})
	if to.verb == "predict" {
		return 0 // as many as the model makes: images may be withheld
	}
	return choices
}

func readOllama(c *Call, doc []byte) (choices int, reason Reason) {
	choices = 1
	asked := false
	members(doc, func(name, v []byte) bool {
		switch string(name) {
		case "model":
			c.Model = text(v)
		case "stream":
			c.Stream = c.API == OllamaChat && isTrue(v)
		case "messages", "prompt":
			asked = asked || given(v)
		case "input":
			asked = asked || given(v)
			choices = inputsOf(v)
		}
		return true
	})
	if !asked {
		return choices, ReasonLoading
	}
	return choices, ""
}

// Package notifytest is a Slack for tests: a server on this machine that
// speaks the part of Slack's Web API that notifications need, fails on request,
// and knows what a person who looks at the channel would see.
//
//	fake, err := notifytest.NewSlack()
//	defer fake.Close()
//	api := slack.New(notifytest.Token, slack.OptionAPIURL(fake.URL()))
//
//	fake.Script("chat.postMessage", notifytest.AcceptThenDrop)
//	... what is under test notifies ...
//	if n := len(fake.Seen(notifytest.Channel)); n != 1 { t.Errorf(...) }
//
// It answers auth.test, chat.postMessage, conversations.history,
// conversations.replies and incoming webhooks as Slack does: scopes, unknown and
// archived channels, threads, message metadata only where it is asked for,
// pages, and limits on text and blocks. What Slack merely advises (4,000
// characters of text) is enforced, so that a message that passes here is safe.
//
// A [Fault] says how one call goes wrong. [Slack.Script] queues faults for the
// next calls of a method, [Slack.Always] sets one until [Slack.Clear],
// [Slack.OnCall] decides call by call (for soaks), and [Slack.Down] refuses
// connections. [WithMemory] keeps the server off the network, so that it works
// inside a testing/synctest bubble, rate limits and delays in virtual time.
//
// Nothing here depends on package notify: it serves tests of any Slack client.
// All methods are safe for concurrent use.
package notifytest

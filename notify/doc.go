// Package notify tells people once: an outbox in the host's own database, and
// destinations such as Slack.
package notify

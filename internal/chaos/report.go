package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"html/template"
	"os"
	"path/filepath"
	"time"
)

//go:embed report.html
var reportHTML string

var page = template.Must(template.New("report").Parse(reportHTML))

// writeReport leaves index.html, with the picture in it, and timeline.svg.
func writeReport(s settings, e evidence, p *proof) error {
	picture := timeline(e)
	if err := os.WriteFile(filepath.Join(s.dir, "timeline.svg"), []byte(picture), 0o644); err != nil {
		return err
	}
	if err := writeTroubles(filepath.Join(s.dir, "troubles.jsonl"), e.Troubles); err != nil {
		return err
	}
	happened := map[string]int{}
	for _, t := range e.Troubles {
		name := string(t.Kind)
		if t.Detail != "" {
			name = t.Detail
		}
		happened[name]++
	}
	f, err := os.Create(filepath.Join(s.dir, "index.html"))
	if err != nil {
		return err
	}
	n := 0
	for _, list := range attempts(e.Entries) {
		n += len(list)
	}
	err = page.Execute(f, map[string]any{
		"Seed": s.seed, "Duration": s.duration, "Took": e.Ended.Sub(e.Began).Round(time.Second), "Workers": s.workers,
		"Concurrency": s.concurrency, "TTL": s.ttl, "Plan": e.Plan.fingerprint(), "Runs": len(e.Plan.Runs), "Attempts": n,
		"Calls": len(e.Calls), "Messages": len(e.Seen), "Happened": happened, "Skipped": e.Skipped,
		"OK": p.ok(), "Claims": p.Claims, "Text": p.String(), "Picture": template.HTML(picture), // made of numbers and our own words
	})
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func writeTroubles(file string, list []trouble) error {
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	for _, t := range list {
		if err := out.Encode(t); err != nil {
			return err
		}
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

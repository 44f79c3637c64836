package main

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
	"time"
)

// The picture: time from left to right; on top what went wrong, for each worker and
// for Redis; below, one line per run with its attempts as bars.
const (
	left, width = 90, 1140
	lane, row   = 14, 5
)

type canvas struct {
	strings.Builder
	from, to time.Time
}

func (c *canvas) x(t time.Time) float64 {
	return left + float64(width)*float64(t.Sub(c.from))/float64(c.to.Sub(c.from))
}

func (c *canvas) bar(from, to time.Time, y, height float64, class, title string) {
	w := max(c.x(to)-c.x(from), 1)
	fmt.Fprintf(c, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>`+"\n", class, c.x(from), y, w, height, html.EscapeString(title))
}

func (c *canvas) text(x, y float64, s string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f">%s</text>`+"\n", x, y, html.EscapeString(s))
}

const style = `<style>
text { font: 10px system-ui, sans-serif; fill: #444 }
.up { fill: #dde6dd } .killed { fill: #c00 } .SIGTERM { fill: #808 } .frozen { fill: #48c } .starved { fill: #bbb } .passing { fill: #ecb }
.redis { fill: #f80 } .slack { fill: #aa0 } .outage { fill: #f80; opacity: .18 } .kill { stroke: #c00; stroke-width: .5; opacity: .5 }
.ok { fill: #4a4 } .err { fill: #c90 } .dead { fill: #c00 } .late { fill: #48c } .refused { fill: #000 }
</style>
`

// timeline draws the evidence.
func timeline(e evidence) string {
	runs := attempts(e.Entries)
	order := make([]string, 0, len(runs))
	for run := range runs {
		order = append(order, run)
	}
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Or(runs[a][0].began.Compare(runs[b][0].began), strings.Compare(a, b))
	})
	seats := seatsOf(e)
	top := float64(20 + lane*(len(seats)+2))
	height := top + float64(row*len(order)) + 40
	c := &canvas{from: e.Began, to: e.Ended}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="100%%">`+"\n%s", left+width+20, height, style)
	for s := time.Duration(0); s < e.Ended.Sub(e.Began); s += 10 * time.Second {
		c.text(c.x(e.Began.Add(s)), 10, s.String())
	}
	for i, s := range seats {
		y := float64(16 + lane*i)
		c.text(0, y+9, "worker "+s)
		c.bar(e.Began, e.Ended, y, lane-3, "up", "")
	}
	c.text(0, float64(16+lane*len(seats)+9), "Redis")
	c.text(0, float64(16+lane*(len(seats)+1)+9), "Slack")
	c.troubles(e, seats, top, height-40)
	for i, run := range order {
		y := top + float64(row*i)
		for _, a := range runs[run] {
			c.attempt(e, a, y)
		}
	}
	c.text(left, height-14, "bars: attempts. green: it ended the run or left it to nobody; yellow: it returned an error; red: its process was killed; blue: it was frozen or overtaken. black dots: refused. orange: Redis out.")
	c.WriteString("</svg>\n")
	return c.String()
}

// seatsOf lists the workers by their places: "w3.7" is the seventh at place w3.
func seatsOf(e evidence) []string {
	var seats []string
	for _, en := range e.Entries {
		if s, _, ok := strings.Cut(en.Process, "."); ok && !slices.Contains(seats, s) {
			seats = append(seats, s)
		}
	}
	slices.Sort(seats)
	return seats
}

func (c *canvas) troubles(e evidence, seats []string, top, bottom float64) {
	for _, t := range e.Troubles {
		title := strings.TrimSpace(fmt.Sprintf("%s %s %s %v", t.Process, t.Kind, t.Detail, t.Until.Sub(t.From).Round(time.Millisecond)))
		switch t.Kind {
		case redisOut:
			c.bar(t.From, t.Until, float64(16+lane*len(seats)), lane-3, "redis", title)
			c.bar(t.From, t.Until, top, bottom-top, "outage", title)
			continue
		case slackOut:
			c.bar(t.From, t.Until, float64(16+lane*(len(seats)+1)), lane-3, "slack", title)
			continue
		case killed:
			fmt.Fprintf(c, `<line class="kill" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`+"\n", c.x(t.From), c.x(t.From), top, bottom)
		}
		place, _, _ := strings.Cut(t.Process, ".")
		class := map[troubleKind]string{starved: "starved", passing: "passing", killed: "killed", stopped: "SIGTERM", frozen: "frozen"}[t.Kind]
		c.bar(t.From, t.Until, float64(16+lane*slices.Index(seats, place)), lane-3, class, title)
	}
}

func (c *canvas) attempt(e evidence, a *attempt, y float64) {
	over := a.over(e.Troubles, e.Ended)
	class := "ok"
	switch {
	case len(a.refused) > 0 || cause(e.Troubles, a.process, a.began, over, 0) == frozen:
		class = "late"
	case a.returned.IsZero():
		class = "dead"
	case a.err != "":
		class = "err"
	}
	c.bar(a.began, over, y, row-1, class, fmt.Sprintf("%s attempt %d on %s: %s", a.run, a.number, a.process, a.err))
	for _, r := range a.refused {
		fmt.Fprintf(c, `<circle class="refused" cx="%.1f" cy="%.1f" r="1.5"><title>%s</title></circle>`+"\n", c.x(r.At), y+2,
			html.EscapeString(fmt.Sprintf("%s attempt %d: %s %s refused", a.run, a.number, r.Kind, r.Phase)))
	}
}

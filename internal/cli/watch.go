package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

const (
	// How often the screen is brought up to date.
	watchEvery = time.Second
	// How many values of a rate are kept: a minute.
	watchHistory = 60
	// How many of them a line shows.
	watchSpark = 24
	// How many sessions or receivers are read at most: more would take longer than a second.
	watchList = 5000
)

// watch shows a relay on the whole screen until the user quits.
func (l *live) watch() error {
	if !terminal(l.out) {
		return usage("watch draws on a terminal").see("fastrelay-gen show")
	}
	m := &watchModel{live: l, history: map[tallyKey][]float64{}, stats: openRunStats()}
	defer m.stats.close()
	final, err := tea.NewProgram(m, tea.WithContext(l.ctx), tea.WithInput(l.in), tea.WithOutput(l.out)).Run()
	if l.ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if m, ok := final.(*watchModel); ok && m.ended != nil {
		return m.ended
	}
	return nil
}

// Tabs of the screen.
const (
	tabPrograms = iota
	tabSessions
	tabReceivers
	tabs
)

var tabNames = [tabs]string{"programs", "sessions", "receivers"}

// watchModel is the screen: what was read last, and what a person chose.
type watchModel struct {
	*live
	stats   *runStats
	history map[tallyKey][]float64 // packets a second, by program and reason
	view    view                   // of sessions or receivers
	data    watchData
	ended   error // why it ends by itself

	width, height int
	tab           int
	turn          int // of ticks: how often the tab was changed
	top           int // the first line that is shown
	sort          int // column
	reverse       bool
}

// watchData is what is read once a second.
type watchData struct {
	turn     int
	at       time.Time
	info     api.Relay
	programs []api.Program
	nanos    map[string]float64 // a packet, by program
	rows     []watchRow         // sessions or receivers
	heads    []string
	more     int // that were not read
	err      error
}

// watchRow is a session or a receiver.
type watchRow struct {
	rate
	cells []string
}

// watched is a row whose first cell is its name, and whose second is to have its rate.
func watched(packets uint64, cells ...string) watchRow {
	return watchRow{rate{tally: tally{program: cells[0], packets: packets}}, cells}
}

// watchTick asks for new data. Its turn ends when another tab is shown.
type watchTick struct{ turn int }

// Init implements [tea.Model].
func (m *watchModel) Init() tea.Cmd { return m.read() }

// read reads all that the present tab shows.
func (m *watchModel) read() tea.Cmd {
	tab, turn := m.tab, m.turn
	return func() tea.Msg {
		d := watchData{turn: turn, at: time.Now()}
		var programs api.Programs
		if d.err = m.get("/v1", &d.info); d.err == nil {
			d.err = m.get("/v1/programs", &programs)
		}
		d.programs = programs.Items
		d.nanos = m.stats.nanos(d.programs)
		if d.err == nil {
			switch tab {
			case tabSessions:
				d.err = m.readSessions(&d)
			case tabReceivers:
				d.err = m.readReceivers(&d)
			}
		}
		return d
	}
}

func (m *watchModel) readSessions(d *watchData) error {
	d.heads = []string{"SESSION", "PACKETS/S", "PACKETS", "USED", "ENDS", "FIELDS", "NO HOP"}
	for _, k := range d.info.Sessions {
		after := ""
		for first := true; first || after != ""; first = false {
			if len(d.rows) >= watchList {
				d.more = *k.Open - len(d.rows)
				break
			}
			var page api.Page[api.Session]
			path := fmt.Sprintf("/v1/sessions/%s?limit=%d&after=%s", k.Name, api.MaxPage, after)
			if err := m.get(path, &page); err != nil {
				return err
			}
			for _, s := range page.Items {
				n := uint64(0)
				for _, r := range s.Rows {
					n += r.Packets
				}
				d.rows = append(d.rows, watched(n, k.Name+" "+s.ID, "", thousands(n), m.used(s), until(s.Expires),
					objectText(s.Fields), hopCell(s.Hops)))
			}
			after = page.Next
		}
	}
	return nil
}

func (m *watchModel) readReceivers(d *watchData) error {
	d.heads = []string{"RECEIVER", "COPIES/S", "COPIES", "DECLINED", "REFUSED", "VALUES", "NO HOP"}
	for _, k := range d.info.Groups {
		groups, err := api.All[api.Group](m.ctx, m.client, "/v1/groups/"+k.Name)
		if err != nil {
			return controlError(m.client.Path, err)
		}
		for _, g := range groups {
			if len(d.rows) >= watchList {
				d.more += g.Receivers
				continue
			}
			all, err := api.All[api.Receiver](m.ctx, m.client, "/v1/groups/"+k.Name+"/"+api.Escape(g.ID)+"/receivers")
			if err != nil {
				continue // the group was closed meanwhile
			}
			for _, v := range all {
				d.rows = append(d.rows, watched(v.Packets, fmt.Sprintf("%s %s / %d", k.Name, g.ID, v.ID), "",
					thousands(v.Packets), thousands(v.Declined), refusedText(v.Values), objectText(v.Values),
					hopCell(v.Hops)))
			}
		}
	}
	return nil
}

// Update implements [tea.Model].
func (m *watchModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case watchData:
		if msg.err != nil {
			m.ended = msg.err
			return m, tea.Quit
		}
		if msg.turn != m.turn {
			return m, nil
		}
		m.take(msg)
		return m, tea.Tick(watchEvery, func(time.Time) tea.Msg { return watchTick{msg.turn} })
	case watchTick:
		if msg.turn == m.turn {
			return m, m.read()
		}
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

// take notes what was read.
func (m *watchModel) take(d watchData) {
	m.data = d
	for _, p := range d.programs {
		for _, r := range reasons(p) {
			h := append(m.history[r.key()], r.packetsPerSecond)
			m.history[r.key()] = h[max(0, len(h)-watchHistory):]
		}
	}
	var all []tally
	for _, r := range m.data.rows {
		all = append(all, r.tally)
	}
	for i, r := range m.view.look(d.at, all) {
		m.data.rows[i].rate = r
		m.data.rows[i].cells[1] = thousands(uint64(r.packetsPerSecond + 0.5))
	}
	m.order()
}

func (m *watchModel) key(key string) tea.Cmd {
	switch key {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "tab", "right", "l":
		return m.show((m.tab + 1) % tabs)
	case "shift+tab", "left", "h":
		return m.show((m.tab + tabs - 1) % tabs)
	case "1", "2", "3":
		return m.show(int(key[0] - '1'))
	case "down", "j":
		m.top++
	case "up", "k":
		m.top--
	case "pgdown", "space":
		m.top += max(1, m.height-5)
	case "pgup":
		m.top -= max(1, m.height-5)
	case "home", "g":
		m.top = 0
	case "s":
		m.sort = (m.sort + 1) % max(1, len(m.data.heads))
		m.order()
	case "r":
		m.reverse = !m.reverse
		m.order()
	}
	return nil
}

// show changes to a tab, whose rows are not there yet.
func (m *watchModel) show(tab int) tea.Cmd {
	if m.tab == tab {
		return nil
	}
	m.tab, m.top, m.sort, m.reverse = tab, 0, 1, false
	m.data.rows, m.data.heads, m.data.more, m.view = nil, nil, 0, view{}
	m.turn++
	return m.read()
}

// order sorts rows by a column: the busiest first, and texts from a on.
func (m *watchModel) order() {
	slices.SortStableFunc(m.data.rows, func(a, b watchRow) int {
		var c int
		switch m.sort {
		case 1:
			c = cmp.Compare(b.packetsPerSecond, a.packetsPerSecond)
		case 2:
			c = cmp.Compare(b.packets, a.packets)
		default:
			c = cmp.Compare(a.cells[m.sort], b.cells[m.sort])
		}
		if m.reverse {
			c = -c
		}
		return c
	})
}

// View implements [tea.Model].
func (m *watchModel) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	return v
}

var (
	bold  = lipgloss.NewStyle().Bold(true)
	faint = lipgloss.NewStyle().Faint(true)
)

// screen is all that is on it.
func (m *watchModel) screen() string {
	if m.data.at.IsZero() || m.width == 0 {
		return "reading " + m.info.Name + " …"
	}
	body := m.programLines()
	if m.tab != tabPrograms {
		body = m.rowLines()
	}
	room := max(m.height-4, 1)
	m.top = max(min(m.top, len(body)-room), 0)
	shown := body[m.top:min(len(body), m.top+room)]
	var tabLine []string
	for i, name := range tabNames {
		text := fmt.Sprintf("%d %s", i+1, name)
		if i == m.tab {
			text = bold.Render("[" + text + "]")
		}
		tabLine = append(tabLine, text)
	}
	lines := []string{bold.Render(m.cut(m.title())), strings.Join(tabLine, "  "), ""}
	for _, line := range shown {
		lines = append(lines, m.cut(line))
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	return strings.Join(append(lines, faint.Render(m.cut(m.help(len(body), room)))), "\n")
}

func (m *watchModel) cut(line string) string {
	if r := []rune(line); len(r) > m.width {
		return string(r[:m.width])
	}
	return line
}

func (m *watchModel) title() string {
	r := m.data.info
	state := "running"
	switch {
	case r.Draining:
		state = "draining"
	case lapsed(&r):
		state = "its lease has lapsed"
	}
	text := fmt.Sprintf("%s  %s  process %d", r.Name, state, r.PID)
	for _, k := range r.Sessions {
		text += fmt.Sprintf("  %s %s/%s", k.Name, thousands(uint64(*k.Open)), thousands(uint64(k.Limit)))
	}
	for _, k := range r.Groups {
		text += fmt.Sprintf("  %s %s, %s", k.Name, thousands(uint64(*k.Open)), plural(*k.Receivers, "receiver"))
	}
	return text + "  " + m.data.at.Format(time.TimeOnly)
}

func (m *watchModel) help(lines, room int) string {
	text := "q quits  tab changes the view  ↑↓ scroll"
	if m.tab != tabPrograms && len(m.data.heads) > 0 {
		text += fmt.Sprintf("  s sorts (by %s)  r reverses", strings.ToLower(m.data.heads[m.sort]))
	}
	if lines > room {
		text += fmt.Sprintf("  %d to %d of %d lines", m.top+1, m.top+room, lines)
	}
	if m.data.more > 0 {
		text += fmt.Sprintf("  %s more weren't read", thousands(uint64(m.data.more)))
	}
	return text
}

// programLines shows programs with their reasons: rates, their history, and time.
func (m *watchModel) programLines() []string {
	var rows []row
	for _, p := range m.data.programs {
		head := fmt.Sprintf("%s  %s  %s  %s packets/s", p.Name, p.Hook, attachmentList(p),
			thousands(uint64(packetRate(p)+0.5)))
		if ns, ok := m.data.nanos[p.Name]; ok {
			head += fmt.Sprintf("  %.0f ns/packet", ns)
		}
		rows = append(rows, heads(head))
		rows = append(rows, rowsOf("", reasons(p), func(t tally) string {
			return fmt.Sprintf("%-*s  %s", watchSpark, spark(m.history[t.key()]), label(t))
		})...)
	}
	return strings.Split(strings.TrimSuffix(layOut(rows, 0, true), "\n"), "\n")
}

// spark draws the last values as bars, the highest in full.
func spark(values []float64) string {
	values = values[max(0, len(values)-watchSpark):]
	top := slices.Max(append([]float64{1}, values...))
	bars := []rune(" ▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, v := range values {
		i := int(v/top*float64(len(bars)-1) + 0.5)
		if v > 0 {
			i = max(i, 1)
		}
		b.WriteRune(bars[i])
	}
	return b.String()
}

func (m *watchModel) rowLines() []string {
	if m.data.heads == nil {
		return []string{"reading …"}
	}
	rows := [][]string{m.data.heads}
	for _, r := range m.data.rows {
		rows = append(rows, r.cells)
	}
	if len(rows) == 1 {
		return []string{"none"}
	}
	return strings.Split(strings.TrimSuffix(columns(rows), "\n"), "\n")
}

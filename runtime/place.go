package runtime

import (
	"fmt"
	"log/slog"

	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/internal/forwarding"
)

// Place says where a program is attached, and what there keeps packets from being forwarded.
type Place struct {
	Attachment
	// The IP versions of packets whose routes the program looks up (`via: "route"`, or a destination that no row has),
	// and which the interface doesn't forward: the kernel finds no route for them. They count as forwarding_off.
	NoForwarding []int
}

// Places returns what [Program.Attachments] does, with what is found now.
func (p *Program) Places() ([]Place, error) {
	r := p.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Place
	err := r.inNamespace(func() error {
		for _, a := range r.attachments {
			if a.program == p.desc.Name {
				out = append(out, r.place(p, a))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look at the interfaces of %s: %w", p.desc.Name, err)
	}
	return out, nil
}

// place looks at an attachment. Nothing is known of an interface that is going away right now. r.mu is held, and the
// thread is in the relay's network namespace.
func (r *Relay) place(p *Program, a *attachment) Place {
	out := Place{Attachment: a.public()}
	if a.lost != nil || len(p.desc.Lookups) == 0 {
		return out
	}
	dev, err := netlink.LinkByIndex(a.index) // it may have another name now
	if err != nil {
		return out
	}
	for _, version := range p.desc.Lookups {
		if on, err := forwarding.On(dev.Attrs().Name, version); err == nil && !on {
			out.NoForwarding = append(out.NoForwarding, version)
		}
	}
	return out
}

// warn says what keeps packets from being forwarded where a program was attached. r.mu is held, and the thread is in
// the relay's network namespace.
func (r *Relay) warn(p *Program, a *attachment) {
	for _, version := range r.place(p, a).NoForwarding {
		r.say(slog.LevelWarn, "an interface doesn't forward packets, and the program looks up their routes",
			"program", p.desc.Name, "interface", a.name, "version", fmt.Sprint("IPv", version),
			"mend", forwarding.Mend(a.name, version))
	}
}

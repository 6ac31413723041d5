package testkernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Source is a Debian suite's kernel for an architecture.
type Source struct {
	Name   string // on the command line and in the cache: "bookworm", "arm64"
	Suite  string // "bookworm"
	Series string // of the kernel, "6.1"; empty: any
	Arch   Arch

	Modules []string // that the guest needs; nil: those that relays need
}

// Sources are all kernels that are tested: first the other architecture, which takes the longest, then from the oldest
// on.
var Sources = []Source{
	{Name: "arm64", Suite: "bookworm", Series: "6.1", Arch: ARM64},
	{Name: "bullseye", Suite: "bullseye", Series: "5.10", Arch: AMD64},
	{Name: "bookworm", Suite: "bookworm", Series: "6.1", Arch: AMD64},
	{Name: "trixie", Suite: "trixie", Series: "6.12", Arch: AMD64},
	{Name: "sid", Suite: "sid", Arch: AMD64},
}

func (s Source) String() string { return fmt.Sprintf("the %s kernel of Debian %s", s.Arch, s.Suite) }

// Kernel is a kernel, unpacked.
type Kernel struct {
	Source  Source   `json:"-"`
	Release string   `json:"release"` // "6.1.0-13-cloud-amd64"
	Version string   `json:"version"` // of the package: "6.1.55-1"
	Wanted  []string `json:"wanted"`  // modules that were looked for
	Modules []string `json:"modules"` // file names in the folder modules, in the order of loading
	Dir     string   `json:"-"`
}

// Image returns the file to boot.
func (k *Kernel) Image() string { return filepath.Join(k.Dir, "vmlinuz") }

// fresh is how long a cached kernel is used before Fetch looks for a newer one.
const fresh = 7 * 24 * time.Hour

// metaPackage depends on the newest kernel of its suite, built for virtual machines.
func (s Source) metaPackage() string { return "linux-image-cloud-" + string(s.Arch) }

// Fetch returns a kernel from the cache, or from the mirror if it isn't cached or is old. If the mirror can't be
// reached, it returns the old one. It passes notes on slow steps and problems to say.
func Fetch(ctx context.Context, source Source, cache string, say func(string)) (*Kernel, error) {
	dir, err := filepath.Abs(filepath.Join(cache, "kernels", source.Name))
	if err != nil {
		return nil, err
	}
	have, age := readKernel(dir, source)
	if have != nil && age < fresh {
		return have, nil
	}
	say(fmt.Sprintf("fetching %s", source))
	k, err := download(ctx, source, dir)
	if err != nil && have != nil {
		say(fmt.Sprintf("%s is %.0f days old, and no newer one is available: %v", have.Release, age.Hours()/24, err))
		return have, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return k, nil
}

// recordName holds the Kernel as JSON. It is written last; its modification time is that of the download.
const recordName = "kernel.json"

func readKernel(dir string, source Source) (*Kernel, time.Duration) {
	info, err := os.Stat(filepath.Join(dir, recordName))
	if err != nil {
		return nil, 0
	}
	text, err := os.ReadFile(filepath.Join(dir, recordName))
	k := &Kernel{Source: source, Dir: dir}
	if err != nil || json.Unmarshal(text, k) != nil || !slices.Equal(k.Wanted, source.Wanted()) {
		return nil, 0
	}
	return k, time.Since(info.ModTime())
}

func download(ctx context.Context, source Source, dir string) (*Kernel, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "."+source.Name+"-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	a, err := newApt(ctx, source, work)
	if err != nil {
		return nil, err
	}
	packages, err := a.closure(ctx, source.metaPackage())
	if err != nil {
		return nil, err
	}
	root := filepath.Join(work, "root")
	for _, name := range packages {
		if err := a.unpack(ctx, name, root); err != nil {
			return nil, err
		}
	}
	k := &Kernel{Source: source, Version: a.version, Wanted: source.Wanted()}
	image, err := k.find(root)
	if err != nil {
		return nil, err
	}
	if source.Series != "" && !strings.HasPrefix(k.Release, source.Series+".") {
		return nil, fmt.Errorf("it is %s, not %s", k.Release, source.Series)
	}
	out := filepath.Join(work, "kernel")
	if err := os.Mkdir(out, 0o755); err != nil {
		return nil, err
	}
	if err := os.Rename(image, filepath.Join(out, "vmlinuz")); err != nil {
		return nil, err
	}
	if k.Modules, err = collectModules(ctx, root, filepath.Join(out, "modules"), k.Wanted); err != nil {
		return nil, err
	}
	record, err := json.MarshalIndent(k, "", "\t")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(out, recordName), append(record, '\n'), 0o644); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	k.Dir = dir
	return k, os.Rename(out, dir)
}

// find returns the kernel among the unpacked packages: in /boot, and since 7.0 beside its modules.
func (k *Kernel) find(root string) (string, error) {
	for _, pattern := range []string{"boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return "", err
		}
		for _, file := range found {
			if k.Release = strings.TrimPrefix(filepath.Base(file), "vmlinuz-"); k.Release == "vmlinuz" {
				k.Release = filepath.Base(filepath.Dir(file))
			}
			return file, nil
		}
	}
	return "", errors.New("its packages contain no kernel")
}

// apt is Debian's package manager with lists and a cache of its own, so that it downloads another suite's packages
// without a change to the system.
type apt struct {
	source  Source
	work    string
	options []string
	version string // of metaPackage
}

func newApt(ctx context.Context, source Source, work string) (*apt, error) {
	mirror, err := debianMirror(ctx)
	if err != nil {
		return nil, err
	}
	a := &apt{source: source, work: work, options: []string{
		"-qq",
		"-o", "Dir::Etc::SourceList=" + filepath.Join(work, "debian.sources"),
		"-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(work, "lists"),
		"-o", "Dir::Cache=" + filepath.Join(work, "cache"),
		"-o", "APT::Architecture=" + string(source.Arch),
		"-o", "APT::Architectures=" + string(source.Arch),
		"-o", "APT::Sandbox::User=root", // the folder is ours alone
		"-o", "Acquire::Languages=none",
		"-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		"-o", "Acquire::Retries=3",
	}}
	for _, dir := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o755); err != nil {
			return nil, err
		}
	}
	list := fmt.Sprintf("Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: %s\nSigned-By: %s\n",
		mirror, source.Suite, source.Arch, "/usr/share/keyrings/debian-archive-keyring.gpg")
	if err := os.WriteFile(filepath.Join(work, "debian.sources"), []byte(list), 0o644); err != nil {
		return nil, err
	}
	if _, err := a.run(ctx, "apt-get", "update"); err != nil {
		return nil, fmt.Errorf("the mirror %s: %w", mirror, err)
	}
	return a, nil
}

// debianMirror returns where this machine gets Debian from, by its own sources.
func debianMirror(ctx context.Context) (string, error) {
	for range 2 {
		out, err := command(ctx, "", "apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(SITE)",
			"Created-By: Packages")
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(out) {
			if site, ok := strings.CutPrefix(strings.TrimSpace(line), "Debian|Debian|"); ok {
				return site, nil
			}
		}
		// Without lists apt doesn't know which of its sources is Debian's.
		if _, err := command(ctx, "", "apt-get", "-qq", "update"); err != nil {
			return "", err
		}
	}
	return "", errors.New("apt's sources name no Debian mirror, from which kernels are downloaded")
}

func (a *apt) run(ctx context.Context, name string, args ...string) (string, error) {
	return command(ctx, a.work, name, append(append([]string(nil), a.options...), args...)...)
}

func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var diagnostics strings.Builder
	cmd.Stderr = &diagnostics
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(diagnostics.String()))
	}
	return string(out), nil
}

// The parts of a kernel: one package up to 6.12, four since.
var kernelPackage = regexp.MustCompile(`^linux-(image|base|binary|modules)-\d\S*$`)

// closure returns the kernel's packages that a package depends on, directly or not.
func (a *apt) closure(ctx context.Context, name string) ([]string, error) {
	var found []string
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		record, err := a.run(ctx, "apt-cache", "show", "--no-all-versions", name)
		if err != nil {
			return err
		}
		if name == a.source.metaPackage() {
			a.version = stanzaField(record, "Version")
		} else {
			found = append(found, name)
		}
		for dependency := range strings.SplitSeq(stanzaField(record, "Depends"), ",") {
			words := strings.Fields(dependency)
			if len(words) > 0 && kernelPackage.MatchString(words[0]) {
				if err := visit(words[0]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := visit(name); err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s depends on no kernel", name)
	}
	return found, nil
}

// stanzaField returns a field of a package's record (deb-control(5)).
func stanzaField(record, name string) string {
	for line := range strings.Lines(record) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// unpack downloads a package and unpacks it, without installing it.
func (a *apt) unpack(ctx context.Context, name, root string) error {
	if _, err := a.run(ctx, "apt-get", "download", name); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(a.work, name+"_*.deb"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("apt-get download %s left %d files", name, len(files))
	}
	_, err = command(ctx, a.work, "dpkg-deb", "-x", files[0], root)
	return err
}

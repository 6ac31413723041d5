package examples

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/fastrelay/fastrelay-gen/examples/turn/server"
	"github.com/fastrelay/fastrelay-gen/internal/cli"
)

// manifests is the folder that they are in.
const manifests = "../deploy/kubernetes/"

// decode reads a manifest as a Kubernetes API server does that refuses unknown and doubled fields.
func decode(t *testing.T, file string) (objects []runtime.Object) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return decodeText(t, text, func(err error) { t.Fatalf("%s: %v", file, err) })
}

func decodeText(t *testing.T, text []byte, wrong func(error)) (objects []runtime.Object) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, schedulingv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err == nil {
			var object runtime.Object
			object, _, err = strict.Decode(document, nil, nil)
			objects = append(objects, object)
		}
		if err != nil {
			wrong(err)
		}
	}
}

func find[T runtime.Object](t *testing.T, objects []runtime.Object) (found T) {
	t.Helper()
	for _, o := range objects {
		if v, ok := o.(T); ok {
			return v
		}
	}
	t.Fatalf("there is no %T", found)
	return found
}

// tool checks a command of fastrelay-gen: that it exists and takes these flags.
func tool(t *testing.T, what string, h *corev1.ExecAction) []string {
	t.Helper()
	if h == nil || len(h.Command) < 2 || h.Command[0] != "/fastrelay-gen" {
		t.Fatalf("%s: %v is no command of the image", what, h)
	}
	var out, problem bytes.Buffer
	args := append(slices.Clone(h.Command[1:]), "--help")
	if status := cli.Do(args, strings.NewReader(""), &out, &problem); status != 0 ||
		!strings.Contains(out.String(), "fastrelay-gen "+h.Command[1]) {
		t.Errorf("%s: %v: status %d: %s", what, h.Command, status, problem.String())
	}
	return h.Command
}

// restricted checks what every relay's container has: a user without rights but for three capabilities.
func restricted(t *testing.T, pod *corev1.PodSpec, c *corev1.Container) {
	t.Helper()
	s, p := c.SecurityContext, pod.SecurityContext
	if !slices.Equal(s.Capabilities.Add, []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON"}) ||
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("capabilities %+v", s.Capabilities)
	}
	if !*p.RunAsNonRoot || *p.RunAsUser != 65532 || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
		p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *pod.AutomountServiceAccountToken {
		t.Errorf("security contexts %+v, %+v", p, s)
	}
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("there is no volume %s", m.Name)
		}
	}
}

// daemonSet reads a manifest, and checks what all have in common.
func daemonSet(t *testing.T, file string) ([]runtime.Object, *corev1.PodSpec, *corev1.Container) {
	t.Helper()
	objects := decode(t, file)
	set := find[*appsv1.DaemonSet](t, objects)
	pod := &set.Spec.Template.Spec
	c := &pod.Containers[0]
	restricted(t, pod, c)
	for name, p := range map[string]*corev1.Probe{
		"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe,
	} {
		command := tool(t, name, p.Exec)
		if alive := slices.Contains(command, "--alive"); alive != (name == "liveness") {
			t.Errorf("%s: %v: a relay that is being drained is alive, but not ready", name, command)
		}
	}
	if !pod.HostNetwork || set.Spec.UpdateStrategy.RollingUpdate.MaxSurge.IntValue() != 0 {
		t.Error("it hasn't the node's network, or two pods would have it")
	}
	if class := find[*schedulingv1.PriorityClass](t, objects); class.Name != pod.PriorityClassName {
		t.Errorf("the priority class is %s, not %s", class.Name, pod.PriorityClassName)
	}
	return objects, pod, c
}

func TestManifestOfTURN(t *testing.T) {
	objects, pod, c := daemonSet(t, manifests+"turn.yaml")
	drain := tool(t, "preStop", c.Lifecycle.PreStop.Exec)
	limit, err := time.ParseDuration(drain[slices.Index(drain, "--limit")+1])
	grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
	if err != nil || grace < limit+20*time.Second {
		t.Errorf("%v for the end of the pod, and %v of them to drain it: %v", grace, limit, err)
	}
	if c.Ports[0].HostPort != c.Ports[0].ContainerPort {
		t.Error("on the node's network, a container's ports are the node's")
	}
	if s := find[*corev1.Secret](t, objects); s.Name != pod.Volumes[1].Secret.SecretName {
		t.Errorf("the secret is %s", s.Name)
	}

	// The server takes these flags, and the users of the secret.
	users := filepath.Join(t.TempDir(), "users")
	text := find[*corev1.Secret](t, objects).StringData["users"]
	if err := os.WriteFile(users, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var args []string
	for _, a := range c.Args {
		a = strings.ReplaceAll(a, "$("+c.Env[0].Name+")", "192.0.2.1")
		args = append(args, strings.ReplaceAll(a, c.VolumeMounts[1].MountPath+"/users", users))
	}
	var problem bytes.Buffer
	if status := server.Command(append(args, "--help"), io.Discard, &problem); status != 0 {
		t.Errorf("turn %v: %s", args, problem.String())
	}
}

// The gate is pinned in a folder of the node's BPF file system, which its init container gives to its user.
func TestManifestOfGate(t *testing.T) {
	_, pod, c := daemonSet(t, manifests+"gate.yaml")
	pins := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "pins" })]
	if !strings.HasPrefix(pins.HostPath.Path, "/sys/fs/bpf/") ||
		*pins.HostPath.Type != corev1.HostPathDirectoryOrCreate {
		t.Errorf("pins are in %+v", pins.HostPath)
	}
	i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "pins" })
	mount := c.VolumeMounts[i]
	if mount.MountPath != "/sys/fs/bpf" || !slices.Contains(c.Args, "-pin=/sys/fs/bpf/gate") {
		t.Errorf("pins are mounted at %s; flags %v", mount.MountPath, c.Args)
	}
	first := pod.InitContainers[0]
	if *first.SecurityContext.RunAsUser != 0 || first.VolumeMounts[0].Name != "pins" ||
		!strings.Contains(strings.Join(first.Command, " "), "chown 65532:65532 "+first.VolumeMounts[0].MountPath) {
		t.Errorf("the init container %+v doesn't give the folder to user 65532", first)
	}
}

// The decoder that the manifests are read with refuses a word that Kubernetes doesn't know, and one that comes twice.
func TestManifestsAreReadStrictly(t *testing.T) {
	text, err := os.ReadFile(manifests + "turn.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"hostNetwork: true":   "hostnetwork: true",
		"minReadySeconds: 10": "minReadySeconds: 10\n  minReadySeconds: 9",
		"maxSurge: 0":         "maxSurges: 0",
	} {
		refused := false
		decodeText(t, []byte(strings.Replace(string(text), from, to, 1)), func(error) { refused = true })
		if !refused {
			t.Errorf("%s is taken", to)
		}
	}
}

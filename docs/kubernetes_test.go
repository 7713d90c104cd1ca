package docs

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// kubernetesObject is as much of a Kubernetes object as deploy/kubernetes uses. It is
// read strictly: a field that is not here, as one that is mistyped, is an error.
type kubernetesObject struct {
	APIVersion string         `yaml:"apiVersion"`
	Kind       string         `yaml:"kind"`
	Metadata   kubernetesMeta `yaml:"metadata"`
	Spec       kubernetesSpec `yaml:"spec"`
}

type kubernetesMeta struct {
	Name   string            `yaml:"name"`
	Labels map[string]string `yaml:"labels"`
}

type kubernetesSpec struct {
	// Of a Service.
	ClusterIP                string           `yaml:"clusterIP"`
	PublishNotReadyAddresses bool             `yaml:"publishNotReadyAddresses"`
	Ports                    []kubernetesPort `yaml:"ports"`

	// Of a StatefulSet; Selector is a Service's too.
	Replicas             int            `yaml:"replicas"`
	ServiceName          string         `yaml:"serviceName"`
	PodManagementPolicy  string         `yaml:"podManagementPolicy"`
	Selector             map[string]any `yaml:"selector"`
	Template             kubernetesPod  `yaml:"template"`
	VolumeClaimTemplates []struct {
		Metadata kubernetesMeta `yaml:"metadata"`
		Spec     struct {
			AccessModes []string       `yaml:"accessModes"`
			Resources   map[string]any `yaml:"resources"`
		} `yaml:"spec"`
	} `yaml:"volumeClaimTemplates"`

	// Of a PodDisruptionBudget.
	MaxUnavailable int `yaml:"maxUnavailable"`
}

type kubernetesPort struct {
	Name          string `yaml:"name"`
	Port          int    `yaml:"port"`
	TargetPort    string `yaml:"targetPort"`
	ContainerPort int    `yaml:"containerPort"`
}

type kubernetesPod struct {
	Metadata kubernetesMeta `yaml:"metadata"`
	Spec     struct {
		AutomountServiceAccountToken  *bool          `yaml:"automountServiceAccountToken"`
		TerminationGracePeriodSeconds int            `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               map[string]any `yaml:"securityContext"`
		Affinity                      struct {
			PodAntiAffinity struct {
				Preferred []struct {
					Weight          int `yaml:"weight"`
					PodAffinityTerm struct {
						TopologyKey   string         `yaml:"topologyKey"`
						LabelSelector map[string]any `yaml:"labelSelector"`
					} `yaml:"podAffinityTerm"`
				} `yaml:"preferredDuringSchedulingIgnoredDuringExecution"`
			} `yaml:"podAntiAffinity"`
		} `yaml:"affinity"`
		Containers []struct {
			Name  string   `yaml:"name"`
			Image string   `yaml:"image"`
			Args  []string `yaml:"args"`
			Env   []struct {
				Name      string `yaml:"name"`
				ValueFrom struct {
					SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
				} `yaml:"valueFrom"`
			} `yaml:"env"`
			Ports           []kubernetesPort `yaml:"ports"`
			StartupProbe    kubernetesProbe  `yaml:"startupProbe"`
			ReadinessProbe  kubernetesProbe  `yaml:"readinessProbe"`
			LivenessProbe   kubernetesProbe  `yaml:"livenessProbe"`
			SecurityContext map[string]any   `yaml:"securityContext"`
			VolumeMounts    []struct {
				Name      string `yaml:"name"`
				MountPath string `yaml:"mountPath"`
				ReadOnly  bool   `yaml:"readOnly"`
			} `yaml:"volumeMounts"`
		} `yaml:"containers"`
		Volumes []struct {
			Name   string `yaml:"name"`
			Secret struct {
				SecretName  string `yaml:"secretName"`
				Optional    bool   `yaml:"optional"`
				DefaultMode int    `yaml:"defaultMode"`
			} `yaml:"secret"`
		} `yaml:"volumes"`
	} `yaml:"spec"`
}

type kubernetesProbe struct {
	HTTPGet struct {
		Path string `yaml:"path"`
		Port string `yaml:"port"`
	} `yaml:"httpGet"`
	PeriodSeconds    int `yaml:"periodSeconds"`
	TimeoutSeconds   int `yaml:"timeoutSeconds"`
	FailureThreshold int `yaml:"failureThreshold"`
}

func kubernetesObjects(t *testing.T) map[string]kubernetesObject {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "deploy", "kubernetes", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	out := make(map[string]kubernetesObject)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d := yaml.NewDecoder(bytes.NewReader(raw), yaml.Strict())
		for {
			var o kubernetesObject
			err := d.Decode(&o)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			name := o.Kind + "/" + o.Metadata.Name
			if _, twice := out[name]; twice {
				t.Errorf("%s is there twice", name)
			}
			out[name] = o
		}
	}
	return out
}

// The manifests for Kubernetes say what the binary does, and what
// docs/how-to/run-on-kubernetes.md promises.
func TestKubernetesManifests(t *testing.T) {
	objects := kubernetesObjects(t)
	want := []string{"PodDisruptionBudget/coordinator", "Service/coordinator", "Service/coordinator-peers", "Service/coordinator-ready", "StatefulSet/coordinator"}
	if got := slices.Sorted(maps.Keys(objects)); !slices.Equal(got, want) {
		t.Fatalf("objects %v, want %v", got, want)
	}
	for name, version := range map[string]string{"PodDisruptionBudget/coordinator": "policy/v1", "Service/coordinator": "v1", "Service/coordinator-peers": "v1", "Service/coordinator-ready": "v1", "StatefulSet/coordinator": "apps/v1"} {
		if got := objects[name].APIVersion; got != version {
			t.Errorf("%s is of %s, want %s", name, got, version)
		}
	}
	set := objects["StatefulSet/coordinator"].Spec
	pod := set.Template
	selects := func(name string, selector map[string]any) {
		t.Helper()
		if len(selector) != len(pod.Metadata.Labels) {
			t.Errorf("%s selects %v, the pods have %v", name, selector, pod.Metadata.Labels)
		}
		for k, v := range selector {
			if pod.Metadata.Labels[k] != v {
				t.Errorf("%s selects %s=%v, the pods have %q", name, k, v, pod.Metadata.Labels[k])
			}
		}
	}
	labels := func(selector map[string]any) map[string]any {
		m, _ := selector["matchLabels"].(map[string]any)
		return m
	}
	selects("the StatefulSet", labels(set.Selector))
	selects("the budget", labels(objects["PodDisruptionBudget/coordinator"].Spec.Selector))
	if set.PodManagementPolicy != "Parallel" || set.Replicas != 3 || objects["PodDisruptionBudget/coordinator"].Spec.MaxUnavailable != 1 {
		t.Errorf("%d replicas, %s, at most %d away", set.Replicas, set.PodManagementPolicy, objects["PodDisruptionBudget/coordinator"].Spec.MaxUnavailable)
	}
	preferred := pod.Spec.Affinity.PodAntiAffinity.Preferred
	if len(preferred) != 1 || preferred[0].Weight < 1 || preferred[0].PodAffinityTerm.TopologyKey != "kubernetes.io/hostname" {
		t.Fatalf("the pods' affinity is %+v", preferred)
	}
	selects("the anti-affinity", labels(preferred[0].PodAffinityTerm.LabelSelector))

	if len(pod.Spec.Containers) != 1 {
		t.Fatalf("%d containers", len(pod.Spec.Containers))
	}
	c := pod.Spec.Containers[0]
	ports := make(map[string]int)
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for name, want := range map[string]struct{ notReady, headless bool }{"coordinator-ready": {}, "coordinator": {notReady: true}, "coordinator-peers": {headless: true}} {
		s := objects["Service/"+name].Spec
		if s.PublishNotReadyAddresses != want.notReady || (s.ClusterIP == "None") != want.headless {
			t.Errorf("service %s: publishes those that are not ready: %v, cluster IP %q", name, s.PublishNotReadyAddresses, s.ClusterIP)
		}
		selects(name, s.Selector)
		if len(s.Ports) != 1 || s.Ports[0].TargetPort != "fleet" || s.Ports[0].Port != ports["fleet"] {
			t.Errorf("service %s: ports %+v, the container has %v", name, s.Ports, ports)
		}
	}
	if _, ok := objects["Service/"+set.ServiceName]; !ok || objects["Service/"+set.ServiceName].Spec.ClusterIP != "None" {
		t.Errorf("the StatefulSet's service %s is no headless one", set.ServiceName)
	}

	// The command line is one that the binary takes.
	page, err := os.ReadFile(filepath.Join(root, "docs", "reference", "commands.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## fealty coordinator\n")
	if !ok {
		t.Fatal("the reference has no fealty coordinator")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	flags := make(map[string]string)
	for i, arg := range c.Args {
		if i == 0 {
			if arg != "coordinator" {
				t.Errorf("it runs %s", arg)
			}
			continue
		}
		flag, value, _ := strings.Cut(arg, "=")
		if !strings.Contains(section, "\n| `"+flag+"` |") {
			t.Errorf("fealty coordinator takes no %s", flag)
		}
		flags[flag] = value
	}
	for flag, port := range map[string]string{"--listen": "fleet", "--metrics": "metrics", "--advertise": "fleet", "--peer": "fleet"} {
		if value := flags[flag]; !strings.HasSuffix(value, ":"+strconv.Itoa(ports[port])) {
			t.Errorf("%s is %q, the port %s is %d", flag, value, port, ports[port])
		}
	}
	if got := flags["--peer"]; !strings.HasPrefix(got, "dns:"+set.ServiceName+":") {
		t.Errorf("peers are looked for at %s, and the headless service is %s", got, set.ServiceName)
	}
	if !strings.HasPrefix(flags["--advertise"], "coordinator-ready:") {
		t.Errorf("members are told %s", flags["--advertise"])
	}
	if _, set := flags["--liveness-store"]; set {
		t.Error("an outage of the store would restart every pod")
	}
	if len(c.Env) != 1 || c.Env[0].Name != "FEALTY_STORE" || c.Env[0].ValueFrom.SecretKeyRef.Name == "" {
		t.Errorf("the store is named by %+v, want a Secret: a flag would show its password", c.Env)
	}
	// The enrolment key outlives the pod.
	if len(set.VolumeClaimTemplates) != 1 || len(c.VolumeMounts) != 2 || c.VolumeMounts[0].Name != set.VolumeClaimTemplates[0].Metadata.Name || !strings.HasPrefix(flags["--data"], c.VolumeMounts[0].MountPath+"/") {
		t.Errorf("data in %s, mounts %+v", flags["--data"], c.VolumeMounts)
	}

	// A keeper's key is a file of root's that the group of the pod reads, and the volume's files keep their modes.
	key, mount := pod.Spec.Volumes, c.VolumeMounts[1]
	if len(key) != 1 || key[0].Name != mount.Name || !mount.ReadOnly || !key[0].Secret.Optional || key[0].Secret.DefaultMode != 0o400 ||
		pod.Spec.SecurityContext["fsGroup"] != pod.Spec.SecurityContext["runAsGroup"] ||
		pod.Spec.SecurityContext["fsGroupChangePolicy"] != "OnRootMismatch" {
		t.Errorf("the key of a keeper comes in by %+v at %+v; security: %v", key, mount, pod.Spec.SecurityContext)
	}
	if how, err := os.ReadFile(filepath.Join(root, "docs", "how-to", "run-on-kubernetes.md")); err != nil ||
		!strings.Contains(string(how), "file:"+mount.MountPath+"/seed.key") || !strings.Contains(string(how), "generic "+key[0].Secret.SecretName) {
		t.Errorf("the page names another file than %s/seed.key: %v", mount.MountPath, err)
	}

	// The probes are those that the coordinator answers.
	source, err := os.ReadFile(filepath.Join(root, "internal", "coordinator", "probes.go"))
	if err != nil {
		t.Fatal(err)
	}
	answered := regexp.MustCompile(`"([a-z]+)": health\.`).FindAllStringSubmatch(string(source), -1)
	if len(answered) != 3 {
		t.Fatalf("the coordinator answers %v", answered)
	}
	probes := map[string]kubernetesProbe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe}
	for _, a := range answered {
		p := probes[a[1]]
		if p.HTTPGet.Path != "/probe/"+a[1] || p.HTTPGet.Port != "metrics" || p.PeriodSeconds < 1 || p.FailureThreshold < 1 {
			t.Errorf("the %s probe is %+v", a[1], p)
		}
	}
	if s := c.SecurityContext; s["allowPrivilegeEscalation"] != false || s["readOnlyRootFilesystem"] != true || pod.Spec.SecurityContext["runAsNonRoot"] != true {
		t.Errorf("security: %v, %v", s, pod.Spec.SecurityContext)
	}
	if pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
		t.Error("the pods get a token of Kubernetes that they have no use for")
	}
}

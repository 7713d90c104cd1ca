package attest_test

import (
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/workload/attest"
)

// The unit and the container are those that the machine's manager or its container runtime named,
// whatever groups users made below or beside them.
func TestPlaced(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("0123456789abcdef", 4)
	other := strings.Repeat("f", 64)
	for _, tc := range []struct{ name, cgroups, unit, container string }{
		{"nothing", "", "", ""},
		{"noise", "x\n:\n::\n0\n0:\n\n", "", ""},
		{"v2", "0::/system.slice/billing.service\n", "billing.service", ""},
		{"without a newline", "0::/system.slice/billing.service", "billing.service", ""},
		{"v2, the root", "0::/\n", "", ""},
		{"init", "0::/init.scope\n", "init.scope", ""},
		{"nested slices", "0::/a.slice/a-b.slice/x.service\n", "x.service", ""},
		{"below a unit", "0::/system.slice/billing.service/other.service\n", "billing.service", ""},
		{"a user's manager", "0::/user.slice/user-7.slice/user@7.service/app.slice/billing.service\n", "user@7.service", ""},
		{"a session", "0::/user.slice/user-7.slice/session-3.scope\n", "session-3.scope", ""},
		{"a container in a user's manager", "0::/user.slice/user-7.slice/user@7.service/docker-" + id + ".scope\n", "user@7.service", ""},
		{"v1", "3:cpu,cpuacct:/\n1:name=systemd:/system.slice/billing.service\n", "billing.service", ""},
		{"v1 with an empty v2", "1:name=systemd:/system.slice/billing.service\n0::/\n", "billing.service", ""},
		{"hybrid", "1:name=systemd:/system.slice/old.service\n0::/system.slice/billing.service\n", "billing.service", ""},
		{"hybrid, the other way round", "0::/system.slice/billing.service\n1:name=systemd:/system.slice/old.service\n", "billing.service", ""},
		{"another controller", "5:cpu:/system.slice/billing.service\n", "", ""},
		{"a colon in a group of v1", "5:cpu:/user/me/x:name=systemd:/system.slice/billing.service\n1:name=systemd:/user.slice/user-7.slice/session-3.scope\n", "session-3.scope", ""},
		{"a colon in a group of v2", "0::/user.slice/a:name=systemd:/system.slice/b.service\n", "", ""},
		{"a hierarchy of another number", "10::/system.slice/billing.service\n", "", ""},
		{"a longer name", "1:name=systemd2:/system.slice/billing.service\n", "", ""},
		{"another manager in a container", "0::/lxc.payload.web/system.slice/billing.service\n", "", ""},
		{"a user's group", "1:name=systemd:/user/me/0/billing.service\n", "", ""},
		{"a gone group", "0::/system.slice/billing.service (deleted)\n", "", ""},
		{"outside of what may be seen", "0::/../../system.slice/billing.service\n", "", ""},
		{"outside, below a slice", "0::/a.slice/../system.slice/billing.service\n", "", ""},
		{"docker by systemd", "0::/system.slice/docker-" + id + ".scope\n", "docker-" + id + ".scope", id},
		{"docker by itself", "0::/docker/" + id + "\n", "", id},
		{"the topmost container", "0::/docker/" + id + "/docker/" + other + "\n", "", id},
		{"systemd in docker", "0::/docker/" + id + "/system.slice/billing.service\n", "", id},
		{"Kubernetes", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope\n", "cri-containerd-" + id + ".scope", id},
		{"an id in capitals", "0::/docker/" + strings.ToUpper(id) + "\n", "", ""},
		{"an id that is longer", "0::/docker/" + id + "0\n", "", ""},
	} {
		if unit, container := attest.Placed(tc.cgroups); unit != tc.unit || container != tc.container {
			t.Errorf("%s: unit %q, container %q; want %q, %q", tc.name, unit, container, tc.unit, tc.container)
		}
	}
}

package recovery

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// marksFlag has a command keep marks of the clusters that it verified.
func marksFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "marks", "",
		"the folder that keeps the newest head seen of each cluster (default fealty/marks in the user's "+
			"configuration folder)")
}

// marks is a folder with one file for each cluster: the newest head that was seen.
type marks struct {
	dir string // "": there is none
}

// marksIn returns the folder that the flag names or, without it, that of the user:
// below XDG_CONFIG_HOME, else .config in HOME.
func marksIn(c *program.CLI, cfg *settings.Values, named string) marks {
	if named != "" {
		return marks{cfg.Within(named)}
	}
	if dir := c.UserFolder(); dir != "" {
		return marks{filepath.Join(dir, "marks")}
	}
	return marks{}
}

func (m marks) file(cluster string) string { return filepath.Join(m.dir, cluster+".json") }

// read returns the mark of cluster, zero if there is none. One that is damaged is an
// error, MarkUnusable: taking it for none would forget what was seen.
func (m marks) read(cluster string) (recovery.Mark, error) {
	if m.dir == "" {
		return recovery.Mark{}, nil
	}
	raw, err := durable.OS().ReadFile(m.file(cluster), recovery.MaxMarkBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return recovery.Mark{}, nil
	}
	var seen recovery.Mark
	if err == nil {
		seen, err = recovery.ParseMark(raw, cluster)
	}
	if err != nil {
		return recovery.Mark{}, errcode.Wrap(err, errcode.MarkUnusable, "cluster", cluster, "verb", "read", "file",
			m.file(cluster), "problem", render.Bare(err).Error(),
			"do", "give the file back from a backup; without one, remove it and take the next look at the cluster as "+
				"the first")
	}
	return seen, nil
}

// keep writes down what was seen, if it is not what is there.
func (m marks) keep(before, now recovery.Mark) error {
	if now.Mark == before.Mark && before.Signers != nil &&
		string(now.TransactionKey) == string(before.TransactionKey) && (now.Root == before.Root || now.Root.IsZero()) {
		return nil
	}
	if now.Root.IsZero() && string(now.TransactionKey) == string(before.TransactionKey) {
		now.Root = before.Root // the same seed, and so the same root
	}
	refused := func(err error) error {
		return errcode.Wrap(err, errcode.MarkUnusable, "cluster", now.Cluster, "verb", "written", "file",
			m.file(now.Cluster), "problem", render.Bare(err).Error())
	}
	if m.dir == "" {
		return errcode.New(errcode.MarkUnusable, "cluster", now.Cluster, "verb", "written", "file",
			"there is no folder for it", "problem", "neither HOME nor XDG_CONFIG_HOME names one")
	}
	raw, err := json.MarshalIndent(now, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.OS().MkdirAll(m.dir); err != nil {
		return refused(err)
	}
	if err := durable.OS().WriteFile(m.file(now.Cluster), append(raw, '\n')); err != nil {
		return refused(err)
	}
	return nil
}

// keepSeen keeps a mark of a history whose share was verified. A person who brings
// the cluster back is not held up by a full disk: it is said, and no more.
func keepSeen(c *program.CLI, m marks, before recovery.Mark, v *history.Verified, root [32]byte) {
	now := recovery.Mark{Cluster: v.Manifest().Cluster, SeenHead: v.Seen(), TransactionKey: v.TransactionKey()}
	if len(v.Reseeds()) == 0 {
		now.Root = root
	}
	if err := m.keep(before, now); err != nil {
		c.Say("what was seen of %s was not written down, so that a store that goes back would not be noticed here: %s",
			now.Cluster, errcode.Of(err).Why)
	}
}

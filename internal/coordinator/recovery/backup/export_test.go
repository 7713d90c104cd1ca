// What tests outside of the package reach for, and no program does.
package backup

import (
	"context"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/store"
)

const MaxRecipients = maxRecipients

// Busy is held by the one backup under way.
func (c *Backups) Busy() chan struct{} { return c.busy }

func (c *Backups) HeadOf(s *authority.State, l store.Listing, owners []string) (*fealtyv1.BackupHead, []store.Entry,
	error) {
	return c.backupHead(s, l, owners)
}

// Note records that a backup was sent.
func (c *Backups) Note(ctx context.Context, by string, revision store.Revision) error {
	return c.noteBackup(ctx, by, revision)
}

// Drilled records whose shares were found good.
func (c *Backups) Drilled(ctx context.Context, req *fealtyv1.RecordDrillRequest) error {
	_, err := backupServer{c: c}.RecordDrill(ctx, req)
	return err
}

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage"
	"go.uber.org/zap"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/store/embedded"
)

const (
	memberName = "embedded"
	// peerName is where the one member is for others, of which there are none: a socket in the folder.
	peerName = "alone:1"
	// predecessorEnds is how long to wait for a server that is about to end: its coordinator died, and has been started again.
	predecessorEnds = 30 * time.Second
	// defragmentAtStart is how many MiB of the database have to be free at a start to be given back to the disk.
	defragmentAtStart = 64
)

// serve runs the server until told is closed, or it fails.
func serve(settings embedded.Settings, told <-chan struct{}, out io.Writer, log *zap.Logger) error {
	// Nobody but this user has any of it, from the moment on at which it is made.
	syscall.Umask(0o077)
	// Sockets have names below a hundred bytes, which those within the folder are.
	if err := os.Chdir(settings.Dir); err != nil {
		return err
	}
	lock, err := lockFolder(filepath.Join(settings.Dir, embedded.LockName), told)
	if err != nil {
		return err
	}
	defer lock.Close()
	cfg, err := configuration(settings, log)
	if err != nil {
		return err
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	if err := os.Chmod(embedded.SocketName, 0o600); err != nil {
		return err
	}
	select {
	case <-e.Server.ReadyNotify():
	case <-e.Server.StopNotify():
		return errors.New("etcd ended before it served")
	case <-told:
		return nil
	}
	if _, err := fmt.Fprintln(out, embedded.ReadyLine); err != nil {
		return err
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-told:
			return nil
		case err := <-e.Err():
			return fmt.Errorf("etcd ended: %w", err)
		case <-e.Server.StopNotify():
			return errors.New("etcd ended by itself")
		case <-look.C:
			tend(e.Server, cfg.QuotaBackendBytes, log)
		}
	}
}

// lockFolder takes the lock, and waits for it while a server that was there before ends.
func lockFolder(path string, told <-chan struct{}) (io.Closer, error) {
	for deadline := time.Now().Add(predecessorEnds); ; {
		lock, err := durable.OS().Lock(path)
		if err == nil || !errors.Is(err, durable.ErrLocked) || time.Now().After(deadline) {
			return lock, err
		}
		select {
		case <-told:
			return nil, errors.New("told to end while another server had the folder")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// configuration is that of the one member of an etcd cluster of its own. It is served by sockets in the folder and by no
// address of a network.
func configuration(settings embedded.Settings, log *zap.Logger) (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.Name = memberName
	cfg.Dir = filepath.Join(settings.Dir, embedded.DataName)
	if err := private(cfg.Dir); err != nil {
		return nil, err
	}
	socket := func(name string) []url.URL { return []url.URL{{Scheme: "unix", Host: name}} }
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = socket(embedded.SocketName), socket(embedded.SocketName)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = socket(peerName), socket(peerName)
	cfg.InitialCluster = cfg.InitialClusterFromName(memberName)
	// No two such clusters have one id. It counts where there is no data yet.
	cfg.InitialClusterToken = rand.Text()
	cfg.EnableGRPCGateway = false
	cfg.AuthToken = "" // who opens the socket is known, and there are no users
	// A store keeps a log of changes of its own, and needs no older revisions of etcd.
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "5m"
	cfg.BootstrapDefragThresholdMegabytes = defragmentAtStart
	cfg.QuotaBackendBytes = cmp.Or(settings.QuotaBytes, storage.DefaultQuotaBytes)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	return cfg, nil
}

// private makes the folder if it is not there, and refuses one that others can open: etcd would only warn.
func private(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s has mode %v, and others could read or write the store: make it a folder of mode 0700", dir, info.Mode())
	}
	return nil
}

const (
	lookEvery = 5 * time.Second
	answerIn  = 5 * time.Second
)

// tend gives space back that etcd does not use any more, and has it take writes again once there is some: nobody else can
// reach it to do that. While it defragments, calls wait.
func tend(s *etcdserver.EtcdServer, quota int64, log *zap.Logger) {
	full := false
	for _, a := range s.Alarms() {
		full = full || a.Alarm == etcdserverpb.AlarmType_NOSPACE
	}
	size, used := s.Backend().Size(), s.Backend().SizeInUse()
	if (full || size > quota/2) && used < size/4*3 {
		began := time.Now()
		if err := s.Backend().Defrag(); err != nil {
			log.Error("the database was not defragmented", zap.Error(err))
			return
		}
		log.Warn("the database was defragmented", zap.Int64("bytes before", size), zap.Int64("bytes now", s.Backend().Size()),
			zap.Duration("took", time.Since(began)))
		size = s.Backend().Size()
	}
	if !full || size > quota/10*9 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	_, err := s.Alarm(ctx, &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_DEACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE,
		MemberID: uint64(s.MemberID())})
	if err != nil {
		log.Error("etcd takes no writes, though there is space again", zap.Error(err))
		return
	}
	log.Warn("there is space again, and etcd takes writes", zap.Int64("bytes", size), zap.Int64("of", quota))
}

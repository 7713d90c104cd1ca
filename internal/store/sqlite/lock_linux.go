package sqlite

import (
	"fmt"
	"syscall"
)

// networkFilesystems by magic number, from statfs(2).
var networkFilesystems = map[uint32]string{
	0x6969:     "nfs",
	0x517b:     "smb",
	0xff534d42: "cifs",
	0xfe534d42: "smb2",
	0x5346414f: "afs",
	0x00c36400: "ceph",
	0x01021997: "9p",
}

// checkFilesystem returns a *FilesystemError if dir is on a network file system.
func checkFilesystem(dir string) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return fmt.Errorf("store: find the file system of %s: %w", dir, err)
	}
	if name, network := networkFilesystems[uint32(st.Type)]; network {
		return &FilesystemError{Path: dir, Type: name}
	}
	return nil
}

// readOnlyDisk reports whether the file system of dir takes no writes, as one does after
// an error of its disk.
func readOnlyDisk(dir string) bool {
	const readOnly = 1 // ST_RDONLY of statfs(2)
	var st syscall.Statfs_t
	return syscall.Statfs(dir, &st) == nil && st.Flags&readOnly != 0
}

//go:build linux

package etcdtest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Control is as much of etcd's own tool, etcdctl, as it takes to make a user and to turn
// authentication on: for a machine that lacks the tool. It takes the same arguments, and
// server and certificate from the same variables of the environment.
func Control(args []string) error {
	raw, err := os.ReadFile(os.Getenv("ETCDCTL_CACERT"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(raw) {
		return errors.New("etcdtest: ETCDCTL_CACERT names a file without a certificate")
	}
	pair, err := tls.LoadX509KeyPair(os.Getenv("ETCDCTL_CERT"), os.Getenv("ETCDCTL_KEY"))
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(strings.TrimPrefix(os.Getenv("ETCDCTL_ENDPOINTS"), "https://"), grpc.WithTransportCredentials(
		credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	auth := pb.NewAuthClient(conn)
	switch line := strings.Join(args, " "); {
	case len(args) == 3 && strings.HasPrefix(line, "role add "):
		_, err = auth.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: args[2]})
	case len(args) == 6 && strings.HasPrefix(line, "role grant-permission ") && args[3] == "--prefix=true" && args[4] == "readwrite":
		end := []byte(args[5])
		end[len(end)-1]++ // of all keys that begin so
		_, err = auth.RoleGrantPermission(ctx, &pb.AuthRoleGrantPermissionRequest{Name: args[2], Perm: &authpb.Permission{
			PermType: authpb.Permission_READWRITE, Key: []byte(args[5]), RangeEnd: end,
		}})
	case len(args) == 4 && strings.HasPrefix(line, "user add ") && args[3] == "--interactive=false":
		var password string
		if _, err := fmt.Scan(&password); err != nil {
			return err
		}
		_, err = auth.UserAdd(ctx, &pb.AuthUserAddRequest{Name: args[2], Password: password, Options: &authpb.UserAddOptions{}})
	case len(args) == 4 && strings.HasPrefix(line, "user grant-role "):
		_, err = auth.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: args[2], Role: args[3]})
	case line == "auth enable":
		_, err = auth.AuthEnable(ctx, &pb.AuthEnableRequest{})
	default:
		err = fmt.Errorf("etcdtest: etcdctl %s is not stood in for", line)
	}
	return err
}

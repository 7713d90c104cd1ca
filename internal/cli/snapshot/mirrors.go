package snapshot

import (
	"fmt"
	"path/filepath"

	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/mirror"
)

// NamedMirrors returns the mirrors that the settings name, and what opens others, which
// are at https URLs alone: who compiles config names no files of this machine.
func NamedMirrors(cfg *settings.Values, roots *MirrorRoots) (named []mirror.Source, open func(string) (mirror.Source, error),
	err error) {
	places, v := cfg.List("snapshot_source"), cfg.Find("snapshot_source")
	bad := func(value, problem, want string) error {
		return errcode.New(errcode.BadValue, "name", v.From, "value", value, "problem", problem, "want", want)
	}
	if len(places) > fetch.MaxMirrors {
		return nil, nil, bad(fmt.Sprintf("%d mirrors", len(places)), "they are too many to be asked in one round",
			fmt.Sprintf("%d at most", fetch.MaxMirrors))
	}
	for _, place := range places {
		source, err := OpenMirror(cfg, place, roots)
		if err != nil {
			return nil, nil, bad(command.ShownArg(place), err.Error(), "https://HOST/PATH or a folder")
		}
		named = append(named, source)
	}
	return named, func(url string) (mirror.Source, error) {
		return mirror.NewHTTPS(mirror.HTTPSConfig{URL: url, CA: roots.Pool})
	}, nil
}

// OpenMirror returns the mirror at a place that was checked.
func OpenMirror(cfg *settings.Values, place string, roots *MirrorRoots) (mirror.Source, error) {
	if settings.IsURL(place) {
		return mirror.NewHTTPS(mirror.HTTPSConfig{URL: place, CA: roots.Pool})
	}
	path, err := filepath.Abs(cfg.Within(place))
	if err != nil {
		return nil, err
	}
	return mirror.NewDir(path)
}

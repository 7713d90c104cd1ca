package render

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// ReadFile returns the content of a file of at most limit bytes, or [ErrTooLarge]. Its errors do not
// name the file.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, Bare(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, Bare(err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w than %d bytes", ErrTooLarge, limit)
	}
	return data, nil
}

// ErrTooLarge is matched by the error of a file that has more bytes than it may have.
var ErrTooLarge = errors.New("it has more")

// Bare returns what the system said, without the path, which the message names.
func Bare(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}

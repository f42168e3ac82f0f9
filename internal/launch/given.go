package launch

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// emptyMeans marks a flag whose empty value says something, which its usage tells.
const emptyMeans = "counterfoil_empty_means"

// Given refuses a flag or an argument that is given as an empty text. That is a
// variable of a script or of a unit file that was not set: taken for "not given" it
// turns off what it names (a policy, the end of a key), or asks for everything
// instead of one thing. Every root command calls it before any of its commands runs.
func Given(cmd *cobra.Command, args []string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if _, means := f.Annotations[emptyMeans]; !means && err == nil && empty(f.Value) {
			err = usage("--%s is empty: give it a value, or leave it out", f.Name)
		}
	})
	if i := slices.Index(args, ""); i >= 0 && err == nil {
		err = usage("argument %d of %s is empty: give it a value, or leave it out", i+1, cmd.CommandPath())
	}
	return err
}

// empty says whether the value, or one of a list, is an empty text.
func empty(v pflag.Value) bool {
	if list, ok := v.(pflag.SliceValue); ok {
		items := list.GetSlice()
		return len(items) == 0 || slices.Contains(items, "")
	}
	return v.String() == ""
}

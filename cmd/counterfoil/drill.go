package main

import "github.com/spf13/cobra"

func (a *app) drillCommand() *cobra.Command { return &cobra.Command{Use: "drill"} }

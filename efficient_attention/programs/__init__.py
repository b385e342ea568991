"""The programs behind the command `efficient-attention`: one module per subcommand, with its flags and its `main`."""

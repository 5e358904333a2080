"""What is decided on the driver and shipped to the tasks: carried types, the aggregate's spec, shard ids."""

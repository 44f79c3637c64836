package integration

const masterName = "main"

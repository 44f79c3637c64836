package checkpoint

const childEnv = "ONCEQ_CHECKPOINT_TEST_CHILD"

func child() {}

package notifytest_test

import (
	"fmt"

	"github.com/slack-go/slack"

	"github.com/nexuscore/onceq/notify/notifytest"
)

// The reply to a message is lost: the caller sees an error, a person sees the
// message.
func Example() {
	fake, err := notifytest.NewSlack()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer fake.Close()
	api := slack.New(notifytest.Token, slack.OptionAPIURL(fake.URL()))

	fake.Script("chat.postMessage", notifytest.AcceptThenDrop)
	_, _, err = api.PostMessage(notifytest.Channel, slack.MsgOptionText("deployed", false))
	fmt.Println("error:", err != nil)
	for _, m := range fake.Seen(notifytest.Channel) {
		fmt.Println("seen:", m.Visible())
	}
	// Output:
	// error: true
	// seen: deployed
}

// Half of all calls fail, as a soak test wants it.
func ExampleSlack_OnCall() {
	fake, err := notifytest.NewSlack()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer fake.Close()
	fake.OnCall(func(c notifytest.Call) notifytest.Fault {
		if c.Method == "chat.postMessage" && c.N%2 == 1 {
			return notifytest.Status(503)
		}
		return notifytest.None
	})
	api := slack.New(notifytest.Token, slack.OptionAPIURL(fake.URL()))
	for range 3 {
		_, _, err := api.PostMessage(notifytest.Channel, slack.MsgOptionText("hello", false))
		fmt.Println(err)
	}
	// Output:
	// slack server error: 503 Service Unavailable
	// <nil>
	// slack server error: 503 Service Unavailable
}

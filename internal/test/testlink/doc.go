// Package testlink joins two hosts of a test network (package testnet) by a link with a delay, losses, bursts of
// losses, duplicates and reordering, which the kernel that tests run on may have no queueing discipline for (netem):
//
//	func TestMain(m *testing.M) {
//		testlink.Main()
//		os.Exit(m.Run())
//	}
//
//	link := testlink.Start(t, net, client, "eth0", server, "eth0", testlink.Config{
//		Seed:  1,
//		FromA: testlink.Direction{Delay: 20 * time.Millisecond, Loss: 0.02},
//		FromB: testlink.Direction{Delay: 20 * time.Millisecond, Rate: 10_000_000},
//	})
//
// The link is a host between the two, without addresses, whose two devices are connected by a process: it reads
// frames from one packet socket, decides what happens to each, and sends it from the other one when its time has come.
// The process has real-time priority, so that other load delays it little, and starts the delay of a frame at the
// kernel's time stamp. Rates are the kernel's (tbf). If the order matters in which packets reach the link, their sender
// should stay on one processor (runtime.LockOSThread, sched_setaffinity).
//
// What happens to a packet depends on the seed and on how many packets came before it in its direction, not on time:
// Config.Fates says in advance which packets will be lost. So a burst of losses lasts until enough packets were sent,
// however long that takes (Bursts.Exact bounds it). ARP, neighbour discovery, and what else isn't a unicast IP
// packet only gets the delay, and isn't counted.
//
// The kernels of both hosts segment GSO packets before they reach the link (SetSegmentation(false) on the devices), so
// that a fate concerns one datagram. After SetSegmentation(true) they cross the link whole, as a veth hands them on,
// and one is lost with all its segments. Partial checksums stay partial, VLAN tags in a packet's metadata stay there.
//
// Never use the link in a measurement of speed: it carries tens of thousands of packets a second, which a cable
// between two hosts carries in a few milliseconds, and takes CPU time from what is measured. It shows how
// programs behave, not how fast they are.
package testlink

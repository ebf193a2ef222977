package limiter

// Back divides units that were not spent after all among the pools that gave the cost, in the reverse of
// their order: to the last that gave first, and to each at most what it gave. It returns the units
// for each request, in their order, to Refund to its policy and key, and changes nothing itself.
//
//   - units of 0 or less, and of a denial, are none. Of more than were granted all go back.
//   - What passed without being counted does not go back: that of an unlimited key, or of a pool under a
//     shadow policy that had no room.
func (a Any) Back(units float64) []float64 {
	back := make([]float64, len(a.PerRequest))
	for i := len(back) - 1; i >= 0 && units > 0; i-- {
		r := &a.PerRequest[i]
		part := min(units, r.Granted)
		if units -= part; !r.Shadowed && r.Source != SourceOverride && r.Source != SourceDegraded {
			back[i] = part
		}
	}
	return back
}

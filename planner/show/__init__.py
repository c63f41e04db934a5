"""What people read: plans, racks, catalogs and fleets as text."""
